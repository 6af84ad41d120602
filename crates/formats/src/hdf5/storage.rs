//! Which parts of an array were ever written. The library gives the fill value for the others and does not say so.
//!
//! Source: HDF5 File Format Specification 3.0, sections II (superblock), III.A.1 (version 1 B-trees), III.B and III.C
//! (symbol tables), IV.A (object headers).

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::unix::fs::FileExt;

use rust_hdf5::H5File;
use rust_hdf5::format::btree_v1::{BTreeV1Config, BTreeV1Node, ChunkBTreeV1Node};
use rust_hdf5::format::dense_link::read_dense_links;
use rust_hdf5::format::local_heap::{LocalHeapHeader, local_heap_get_string};
use rust_hdf5::format::messages::data_layout::{ChunkIndexType, DataLayoutMessage};
use rust_hdf5::format::messages::link::{LinkMessage, LinkTarget};
use rust_hdf5::format::messages::link_info::LinkInfoMessage;
use rust_hdf5::format::messages::{
    MSG_DATA_LAYOUT, MSG_LINK, MSG_LINK_INFO, MSG_OBJ_HEADER_CONTINUATION, MSG_SYMBOL_TABLE,
};
use rust_hdf5::format::object_header::{OHDR_SIGNATURE, ObjectHeader, ObjectHeaderMessage};
use rust_hdf5::format::superblock::{SuperblockV0V1, SuperblockV2V3, detect_superblock_version};
use rust_hdf5::format::symbol_table::SymbolTableNode;
use rust_hdf5::format::{BlockReader, FormatContext, FormatError, FormatResult, UNDEF_ADDR};

/// Bytes of an object header that are read at first.
const HEADER_BYTES: usize = 8192;
/// Blocks of an object header, and depth of trees, that are followed.
const BLOCKS_MAX: usize = 4096;

/// What of an array was written.
pub(super) enum Written {
    All,
    Nothing,
    /// These chunks, by their first elements.
    Chunks(HashSet<Vec<u64>>),
    /// The index of its chunks is not read here: the library is asked for each.
    Unknown,
}

/// The object headers of the members of each group that was looked into, by the header of the group.
pub(super) type Members = RefCell<HashMap<u64, HashMap<String, u64>>>;

/// Finds what of the array at a path without links was written.
pub(super) fn written(
    file: &File,
    base: u64,
    (opened, members): (&H5File, &Members),
    key: &str,
    shape: &[usize],
) -> Written {
    if shape.contains(&0) {
        return Written::All;
    }
    let found = Locator::open(file, base, opened).and_then(|mut locator| {
        let layout = locator.layout(key, members)?;
        locator.written(&layout, shape)
    });
    found.unwrap_or(Written::Unknown)
}

struct Locator<'a> {
    file: &'a File,
    base: u64,
    ctx: FormatContext,
    btree: BTreeV1Config,
    root: u64,
}

impl BlockReader for Locator<'_> {
    fn read_block(&mut self, offset: u64, len: usize) -> FormatResult<Vec<u8>> {
        let invalid = |error: std::io::Error| FormatError::InvalidData(error.to_string());
        let at = offset.checked_add(self.base).ok_or_else(lost)?;
        let size = self.file.metadata().map_err(invalid)?.len();
        let mut bytes = vec![0; len.min(size.saturating_sub(at) as usize)];
        self.file.read_exact_at(&mut bytes, at).map_err(invalid)?;
        Ok(bytes)
    }
}

fn lost() -> FormatError {
    FormatError::InvalidData("a structure leads out of the file".to_owned())
}

fn number(bytes: &[u8], size: usize) -> Option<u64> {
    let bytes = bytes.get(..size)?;
    Some(
        bytes
            .iter()
            .rev()
            .fold(0, |number, &byte| number << 8 | u64::from(byte)),
    )
}

impl<'a> Locator<'a> {
    fn open(file: &'a File, base: u64, opened: &H5File) -> FormatResult<Self> {
        let mut locator = Self {
            file,
            base,
            ctx: FormatContext::default_v3(),
            btree: BTreeV1Config::default(),
            root: 0,
        };
        let bytes = locator.read_block(0, 1024)?;
        if detect_superblock_version(&bytes)? < 2 {
            let block = SuperblockV0V1::decode(&bytes)?;
            locator.ctx.sizeof_addr = block.sizeof_offsets;
            locator.ctx.sizeof_size = block.sizeof_lengths;
            locator.btree.sym_leaf_k = block.sym_leaf_k;
            locator.btree.snode_internal_k = block.btree_internal_k;
            let chunk_k = block.indexed_storage_k;
            locator.btree.chunk_internal_k = chunk_k.unwrap_or(locator.btree.chunk_internal_k);
            locator.root = block.root_symbol_table_entry.obj_header_addr;
        } else {
            let block = SuperblockV2V3::decode(&bytes)?;
            locator.ctx.sizeof_addr = block.sizeof_offsets;
            locator.ctx.sizeof_size = block.sizeof_lengths;
            locator.root = block.root_group_object_header_address;
        }
        if let Some(k) = opened.superblock_extension().btree_k {
            locator.btree.sym_leaf_k = k.sym_leaf_k;
            locator.btree.snode_internal_k = k.snode_internal_k;
            locator.btree.chunk_internal_k = k.chunk_internal_k;
        }
        Ok(locator)
    }

    /// The messages of an object header with those of its continuations.
    fn messages(&mut self, at: u64) -> FormatResult<Vec<ObjectHeaderMessage>> {
        let mut bytes = self.read_block(at, HEADER_BYTES)?;
        if let Err(FormatError::BufferTooShort { needed, .. }) = ObjectHeader::decode_any(&bytes) {
            bytes = self.read_block(at, needed)?;
        }
        let (header, _) = ObjectHeader::decode_any(&bytes)?;
        let is_second = bytes.starts_with(&OHDR_SIGNATURE);
        let has_order = is_second && header.flags & 4 != 0;
        let mut messages = header.messages;
        let (mut next, mut blocks) = (0, 0);
        while next < messages.len() {
            let message = &messages[next];
            next += 1;
            if message.msg_type != MSG_OBJ_HEADER_CONTINUATION || blocks == BLOCKS_MAX {
                continue;
            }
            blocks += 1;
            let (wide, size) = (self.ctx.sizeof_addr.into(), self.ctx.sizeof_size.into());
            let address = number(&message.data, wide).ok_or_else(lost)?;
            let length = message.data.get(wide..).and_then(|rest| number(rest, size));
            let block = self.read_block(address, length.ok_or_else(lost)? as usize)?;
            messages.extend(if is_second {
                second_block(&block, has_order)
            } else {
                first_block(&block)?
            });
        }
        Ok(messages)
    }

    /// Adds the object headers of the members of a group; of members of one name the first.
    fn list_members(&mut self, group: u64, found: &mut HashMap<String, u64>) -> FormatResult<()> {
        let wide = usize::from(self.ctx.sizeof_addr);
        for message in self.messages(group)? {
            match message.msg_type {
                MSG_SYMBOL_TABLE => {
                    let tree = number(&message.data, wide).ok_or_else(lost)?;
                    let heap = message.data.get(wide..).and_then(|rest| number(rest, wide));
                    self.list_table(tree, heap.ok_or_else(lost)?, found)?;
                }
                MSG_LINK => add_links(&[LinkMessage::decode(&message.data, &self.ctx)?.0], found),
                MSG_LINK_INFO => {
                    let (info, _) = LinkInfoMessage::decode(&message.data, &self.ctx)?;
                    let ctx = self.ctx;
                    add_links(&read_dense_links(&info, &ctx, self)?, found);
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Adds the members of a symbol table.
    fn list_table(
        &mut self,
        tree: u64,
        heap: u64,
        found: &mut HashMap<String, u64>,
    ) -> FormatResult<()> {
        let (wide, size) = (self.ctx.sizeof_addr.into(), self.ctx.sizeof_size.into());
        let head = LocalHeapHeader::decode(&self.read_block(heap, 64)?, wide, size)?;
        let names = self.read_block(head.data_addr, head.data_size as usize)?;
        let mut left = vec![tree];
        for _ in 0..BLOCKS_MAX {
            let Some(at) = left.pop() else {
                return Ok(());
            };
            let node_size = self.btree.snode_btree_node_size(wide, size);
            let bytes = self.read_block(at, node_size)?;
            let node = BTreeV1Node::decode(&bytes, wide, size, self.btree.snode_max_entries())?;
            if node.level > 0 {
                left.extend(node.children);
                continue;
            }
            for child in node.children {
                let bytes =
                    self.read_block(child, self.btree.symbol_table_node_size(wide, size))?;
                let most = self.btree.sym_leaf_max_entries();
                for entry in SymbolTableNode::decode(&bytes, wide, size, most)?.entries {
                    let name = local_heap_get_string(&names, entry.name_offset)?;
                    found.entry(name).or_insert(entry.obj_header_addr);
                }
            }
        }
        Err(lost())
    }

    fn layout(&mut self, key: &str, members: &Members) -> FormatResult<DataLayoutMessage> {
        let mut at = self.root;
        let mut members = members.borrow_mut();
        for name in key.split('/') {
            let of_group = members.entry(at).or_insert_with(|| {
                let mut found = HashMap::new();
                // What is damaged has no further members.
                let _ = self.list_members(at, &mut found);
                found
            });
            at = *of_group.get(name).ok_or_else(lost)?;
        }
        let messages = self.messages(at)?;
        let layout = messages
            .iter()
            .find(|message| message.msg_type == MSG_DATA_LAYOUT);
        Ok(DataLayoutMessage::decode(&layout.ok_or_else(lost)?.data, &self.ctx)?.0)
    }

    fn written(&mut self, layout: &DataLayoutMessage, shape: &[usize]) -> FormatResult<Written> {
        let (chunk, tree) = match layout {
            DataLayoutMessage::Contiguous { address, .. } if *address == UNDEF_ADDR => {
                return Ok(Written::Nothing);
            }
            DataLayoutMessage::ChunkedV4 { index_address, .. } if *index_address == UNDEF_ADDR => {
                return Ok(Written::Nothing);
            }
            DataLayoutMessage::ChunkedV4 {
                index_type: ChunkIndexType::SingleChunk | ChunkIndexType::Implicit,
                ..
            }
            | DataLayoutMessage::Contiguous { .. }
            | DataLayoutMessage::Compact { .. }
            | DataLayoutMessage::Virtual { .. } => return Ok(Written::All),
            DataLayoutMessage::ChunkedV4 { .. } => return Ok(Written::Unknown),
            DataLayoutMessage::ChunkedV3 {
                chunk_dims,
                b_tree_address,
            } => (
                chunk_dims.get(..shape.len()).ok_or_else(lost)?,
                *b_tree_address,
            ),
        };
        let mut found = HashSet::new();
        let mut left = vec![tree];
        let (wide, rank) = (usize::from(self.ctx.sizeof_addr), shape.len());
        let size = self.file.metadata().map_or(0, |data| data.len()) as usize;
        let node_size = self.btree.chunk_btree_node_size(wide, rank);
        let mut nodes = 0;
        while let Some(at) = left.pop().filter(|&at| at != UNDEF_ADDR) {
            nodes += 1;
            if nodes > size / 8 {
                return Err(lost());
            }
            let bytes = self.read_block(at, node_size)?;
            let most = self.btree.chunk_max_entries();
            let node = ChunkBTreeV1Node::decode(&bytes, wide, rank, most)?;
            if node.level > 0 {
                left.extend(node.children);
                continue;
            }
            for (key, child) in node.keys.iter().zip(&node.children) {
                let first = &key.offsets[..rank];
                let is_within = first
                    .iter()
                    .zip(shape)
                    .all(|(&at, &extent)| at < extent as u64);
                if *child != UNDEF_ADDR && is_within {
                    found.insert(first.to_vec());
                }
            }
        }
        let extents = shape.iter().zip(chunk);
        let chunks = extents
            .map(|(&extent, &chunk)| (extent as u64).div_ceil(chunk.max(1)))
            .try_fold(1u64, u64::checked_mul);
        Ok(match found.len() as u64 {
            0 => Written::Nothing,
            count if Some(count) == chunks => Written::All,
            _ => Written::Chunks(found),
        })
    }
}

fn add_links(links: &[LinkMessage], found: &mut HashMap<String, u64>) {
    for link in links {
        if let LinkTarget::Hard { address } = link.target {
            found.entry(link.name.clone()).or_insert(address);
        }
    }
}

/// Messages of a continuation of a header of version 1, which has none of its own fields.
fn first_block(block: &[u8]) -> FormatResult<Vec<ObjectHeaderMessage>> {
    let mut bytes = vec![1, 0, 0xff, 0xff, 1, 0, 0, 0];
    bytes.extend((block.len() as u32).to_le_bytes());
    bytes.extend([0; 4]);
    bytes.extend(block);
    Ok(ObjectHeader::decode_v1(&bytes)?.0.messages)
}

/// Messages of a continuation of a header of version 2: a signature, messages, a checksum.
fn second_block(block: &[u8], has_order: bool) -> Vec<ObjectHeaderMessage> {
    let mut messages = Vec::new();
    let mut rest = block
        .get(4..block.len().saturating_sub(4))
        .unwrap_or_default();
    let head = if has_order { 6 } else { 4 };
    while rest.len() >= head {
        let size = usize::from(u16::from_le_bytes([rest[1], rest[2]]));
        let Some(data) = rest.get(head..head + size) else {
            break;
        };
        messages.push(ObjectHeaderMessage {
            msg_type: rest[0],
            flags: rest[3],
            creation_index: 0,
            data: data.to_vec(),
        });
        rest = &rest[head + size..];
    }
    messages
}
