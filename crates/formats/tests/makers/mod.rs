//! Makers of small files that ask for much.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use partita_formats::checksum::crc32c;
use rust_hdf5::{Filter, FilterPipeline, H5File};

const MIB: usize = 1 << 20;

fn segment(marker: u8, contents: &[u8]) -> Vec<u8> {
    let length = (contents.len() as u16 + 2).to_be_bytes();
    [&[0xff, marker], &length[..], contents].concat()
}

/// A JPEG file of one gray tone as far as it goes: each code is one bit, 0, and there are as many bytes as are asked for.
///
/// Codes of the first coefficients say that they do not differ, those of the others that a block ends, or a run of 2^14
/// blocks where scans are progressive.
fn jpeg(side: u16, channels: u8, is_progressive: bool, bytes: [usize; 2]) -> Vec<u8> {
    let codes = |place: u8, symbol: u8| {
        let mut table = vec![place, 1];
        table.resize(17, 0);
        table.push(symbol);
        segment(0xc4, &table)
    };
    let parts: Vec<u8> = (1..=channels).flat_map(|id| [id, 0x11, 0]).collect();
    let side = side.to_be_bytes();
    let frame = [&[8], &side[..], &side, &[channels], &parts].concat();
    let scan = |ids: &[u8], rest: [u8; 3], bytes: usize| {
        let parts: Vec<u8> = ids.iter().flat_map(|&id| [id, 0]).collect();
        let header = [&[ids.len() as u8], &parts[..], &rest].concat();
        [segment(0xda, &header), vec![0; bytes]].concat()
    };
    let all: Vec<u8> = (1..=channels).collect();
    let scans = if is_progressive {
        let each = all.iter().flat_map(|&id| scan(&[id], [1, 63, 0], bytes[1]));
        [scan(&all, [0, 0, 0], bytes[0]), each.collect()].concat()
    } else {
        scan(&all, [0, 63, 0], bytes[0])
    };
    [
        vec![0xff, 0xd8],
        segment(0xdb, &[vec![0], vec![1; 64]].concat()),
        segment(if is_progressive { 0xc2 } else { 0xc0 }, &frame),
        codes(0x00, 0),
        codes(0x10, if is_progressive { 0xe0 } else { 0 }),
        scans,
        vec![0xff, 0xd9],
    ]
    .concat()
}

pub fn claiming_jpeg(path: &Path) {
    fs::write(path, jpeg(20_000, 3, false, [500, 0])).unwrap();
}

pub fn large_jpeg(path: &Path) {
    fs::write(path, jpeg(16_000, 1, false, [500, 0])).unwrap();
}

pub fn short_progressive(path: &Path) {
    fs::write(path, jpeg(16_000, 1, true, [4000, 100])).unwrap();
}

pub fn flat_jpeg(path: &Path) {
    // 725 x 725 blocks, two bits each.
    fs::write(
        path,
        jpeg(5800, 1, false, [(725 * 725usize * 2).div_ceil(8), 0]),
    )
    .unwrap();
}

pub fn flat_progressive(path: &Path) {
    // 256 x 256 blocks: a bit each, and four runs of 15 bits.
    fs::write(path, jpeg(2048, 1, true, [8192, 8])).unwrap();
}

pub fn large_progressive(path: &Path) {
    // 640 x 640 blocks: a bit each, and 25 runs of 15 bits.
    fs::write(path, jpeg(5120, 1, true, [51_200, 47])).unwrap();
}

fn png(path: &Path, side: u32, contents: &[u8], before: &[u8]) {
    let chunk = |name: &[u8], data: &[u8]| {
        let mut sum = flate2::Crc::new();
        sum.update(name);
        sum.update(data);
        let length = (data.len() as u32).to_be_bytes();
        [&length[..], name, data, &sum.sum().to_be_bytes()].concat()
    };
    let side = side.to_be_bytes();
    let header = [&side[..], &side, &[8, 0, 0, 0, 0]].concat();
    let profile = match before {
        [] => Vec::new(),
        _ => chunk(b"iCCP", before),
    };
    let file = [
        b"\x89PNG\r\n\x1a\n".to_vec(),
        chunk(b"IHDR", &header),
        profile,
        chunk(b"IDAT", contents),
        chunk(b"IEND", &[]),
    ];
    fs::write(path, file.concat()).unwrap();
}

fn zlib(zeros: usize) -> Vec<u8> {
    let mut packed = ZlibEncoder::new(Vec::new(), Compression::fast());
    fill(&mut packed, 0, zeros);
    packed.finish().unwrap()
}

fn gzip(head: &[u8], value: u8, count: usize) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(head).unwrap();
    fill(&mut packed, value, count);
    packed.finish().unwrap()
}

fn fill(out: &mut dyn Write, value: u8, count: usize) {
    let piece = vec![value; MIB];
    let mut left = count;
    while left > 0 {
        let now = left.min(MIB);
        out.write_all(&piece[..now]).unwrap();
        left -= now;
    }
}

pub fn flat_png(path: &Path) {
    png(path, 4400, &zlib(4400 * 4401), &[]);
}

pub fn claiming_png(path: &Path) {
    png(path, 32_000, &zlib(32), &[]);
}

/// A profile whose stream is far larger than the image.
pub fn profile_png(path: &Path) {
    let profile = [b"a\0\0".to_vec(), zlib(24 * MIB)].concat();
    png(path, 4, &zlib(4 * 5), &profile);
}

fn array(path: &Path, shape: [usize; 2], chunk: [usize; 2], filters: FilterPipeline) {
    let file = H5File::create(path).unwrap();
    let array = file
        .new_dataset::<u8>()
        .shape(shape)
        .chunk(&chunk)
        .filter_pipeline(filters)
        .create("x")
        .unwrap();
    let row = vec![7u8; shape[1]];
    for at in 0..shape[0] {
        array.write_slice(&[at, 0], &[1, shape[1]], &row).unwrap();
    }
    file.close().unwrap();
}

pub fn gzip_chunks(path: &Path) {
    array(path, [24, MIB], [1, MIB], FilterPipeline::deflate(1));
}

pub fn gzip_tower(path: &Path) {
    let one = FilterPipeline::deflate(1);
    let mut filters: Vec<Filter> = Vec::new();
    for _ in 0..5 {
        filters.extend(one.filters.iter().cloned());
    }
    array(path, [1, MIB], [1, MIB], FilterPipeline { filters });
}

pub fn scale_offset(path: &Path) {
    let file = H5File::create(path).unwrap();
    let datatype = <u8 as rust_hdf5::H5Type>::hdf5_type();
    let chunk = [1, 1 << 17];
    let filters = FilterPipeline::scaleoffset(&datatype, 1 << 17, 0).unwrap();
    let array = file
        .new_dataset::<u8>()
        .shape([1 << 8, 1 << 17])
        .chunk(&chunk)
        .filter_pipeline(filters)
        .create("x")
        .unwrap();
    let row = vec![7u8; 1 << 17];
    for at in 0..1 << 8 {
        array.write_slice(&[at, 0], &[1, 1 << 17], &row).unwrap();
    }
    file.close().unwrap();
}

fn zarr(path: &Path, length: usize, compressor: &str, chunk: &[u8]) {
    fs::create_dir(path).unwrap();
    let header = format!(
        r#"{{"zarr_format": 2, "shape": [1, {length}], "chunks": [1, {length}], "dtype": "|u1",
        "compressor": {compressor}, "fill_value": 0, "order": "C", "filters": null}}"#
    );
    fs::write(path.join(".zarray"), header).unwrap();
    fs::write(path.join("0.0"), chunk).unwrap();
}

pub fn zarr_gzip(path: &Path) {
    let chunk = gzip(&[], 7, 24 * MIB);
    zarr(path, 24 * MIB, r#"{"id": "gzip"}"#, &chunk);
}

/// Blocks that repeat a byte: four bytes for 128 KiB.
///
/// Source: RFC 8878, sections 3.1.1.1 and 3.1.1.2.
pub fn zarr_zstd(path: &Path) {
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0, 0x50];
    for block in 1..=512u32 {
        let is_last = u32::from(block == 512);
        let header = is_last | 1 << 1 | (128 << 10) << 3;
        frame.extend(&header.to_le_bytes()[..3]);
        frame.push(7);
    }
    zarr(path, 1024, r#"{"id": "zstd"}"#, &frame);
}

pub fn zarr_blosc(path: &Path) {
    let size = (512u32 << 20).to_le_bytes();
    let chunk = [
        &[2, 1, 1 << 5, 1],
        &size[..],
        &size,
        &[32, 0, 0, 0],
        &[0; 64],
    ]
    .concat();
    zarr(path, 1024, r#"{"id": "blosc"}"#, &chunk);
}

pub fn zarr_sparse(path: &Path) {
    zarr(path, 1024, "null", &[]);
    let file = File::create(path.join("0.0")).unwrap();
    file.set_len(1 << 40).unwrap();
}

pub fn tfrecord(path: &Path) {
    let masked = |data: &[u8]| crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8);
    let length = (24 * MIB as u64).to_le_bytes();
    let head = [&length[..], &masked(&length).to_le_bytes()].concat();
    fs::write(path, gzip(&head, 0, 24 * MIB + 4)).unwrap();
}

pub fn nifti(path: &Path) {
    let mut head = vec![0u8; 352];
    head[..4].copy_from_slice(&348u32.to_le_bytes());
    for (at, extent) in [3u16, 1024, 1024, 24].into_iter().enumerate() {
        head[40 + 2 * at..][..2].copy_from_slice(&extent.to_le_bytes());
    }
    head[70] = 2;
    head[108..112].copy_from_slice(&352f32.to_le_bytes());
    head[344..348].copy_from_slice(b"n+1\0");
    fs::write(path, gzip(&head, 7, 24 * MIB)).unwrap();
}

pub fn sparse_npy(path: &Path) {
    let mut text = format!(
        "{{'descr': '<f4', 'fortran_order': False, 'shape': ({},), }}",
        1u64 << 38
    );
    text += "\n";
    let mut file = File::create(path).unwrap();
    file.write_all(b"\x93NUMPY\x01\x00").unwrap();
    file.write_all(&(text.len() as u16).to_le_bytes()).unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file.set_len((1 << 40) + 1024).unwrap();
}
