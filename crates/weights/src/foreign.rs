//! Files of other formats, to say what they are.

use std::collections::BTreeSet;

use partita_formats::{LFS, LFS_REMEDY};
use serde_json::Value;

/// What a file of another format is, by its first bytes, and what to do with it.
///
/// Source: PyTorch's documentation of `torch.save` (zip since 1.6, pickle before), the HDF5 file format specification,
/// section II.A, NumPy's `numpy.lib.format`, and Hugging Face's `save_torch_model` (index of shards).
pub(crate) fn foreign(start: &[u8]) -> Option<String> {
    let known = match start {
        _ if start.starts_with(LFS) => {
            return Some(LFS_REMEDY.trim_start_matches("it is ").to_owned());
        }
        [b'{' | b' ' | b'\n', ..] => return index_of_shards(start),
        [b'P', b'K', 3, 4, ..] | [0x80, 2..=5, ..] => {
            "a file of `torch.save` or another zip or pickle file; load it in PyTorch and write its state dict with \
             `safetensors.torch.save_file`"
        }
        [0x89, b'H', b'D', b'F', ..] => "an HDF5 file",
        [0x93, b'N', b'U', b'M', b'P', b'Y', ..] => "an NPY file",
        _ => return None,
    };
    Some(known.to_owned())
}

/// What JSON is that says in which files the tensors of a model are.
fn index_of_shards(text: &[u8]) -> Option<String> {
    let index: Value = serde_json::from_slice(text).ok()?;
    let files: BTreeSet<&str> = index
        .get("weight_map")?
        .as_object()?
        .values()
        .filter_map(Value::as_str)
        .collect();
    Some(format!(
        "an index of {} files of tensors, from {} on; load them in Python (`safetensors.torch.load_file`) and write \
         all tensors to one file with `safetensors.torch.save_file`",
        files.len(),
        files.first()?
    ))
}
