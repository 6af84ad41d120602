//! Arguments on the names and the axis order of weights.

use super::NamesName;
use clap::Args;
use partita::{KernelAxes, Selection};
use partita_space::help::Expected;

/// Names of weights of a file in the model, which are left, and their axis order.
#[derive(Debug, Args)]
pub struct SelectionArgs {
    /// Name of a tensor of the file, or its beginning up to a dot, and what it is in the model, such as
    /// `backbone.conv1=conv1`; nothing behind `=` drops it. May be given several times
    #[arg(long, value_name = "FROM=TO", value_parser = rename)]
    pub rename: Vec<(String, String)>,
    /// Tensor of the file that the model does not have; `*` stands for any characters. May be given several times
    #[arg(long, value_name = "NAME")]
    pub skip: Vec<String>,
    /// Names and axis order of a weight file whose metadata, names and shapes do not say it
    #[arg(long, value_enum)]
    pub order: Option<NamesName>,
    /// Dims of the samples along which the kernels of a PyTorch file lie, such as `WHD` for a network that was trained on
    /// arrays of NiBabel (x, y, z) (default: DHW, or HW of images)
    #[arg(long, value_name = "AXES")]
    pub axes: Option<KernelAxes>,
}

impl SelectionArgs {
    /// As the library has it.
    pub fn selection(&self) -> Selection {
        Selection {
            skip: self.skip.clone(),
            rename: self.rename.clone(),
            order: self.order.map(NamesName::names),
            axes: self.axes.clone(),
            ..Selection::default()
        }
    }
}

fn rename(text: &str) -> Result<(String, String), Expected> {
    match text.split_once('=') {
        Some((old, new)) => Ok((old.to_owned(), new.to_owned())),
        None => Err(
            Expected::from("the name in the file and that in the model, FROM=TO")
                .nearest(format_args!("`{text}=`, which drops it")),
        ),
    }
}
