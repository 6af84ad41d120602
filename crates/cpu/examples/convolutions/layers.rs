//! The convolutions of some networks.

/// A layer, with the extents of what the convolution reads, without padding.
#[derive(Clone, Copy)]
pub struct Layer {
    pub network: &'static str,
    pub name: &'static str,
    /// How often the network has it.
    pub count: usize,
    pub samples: usize,
    pub c: usize,
    pub f: usize,
    pub extent: [usize; 3],
    pub kernel: [usize; 3],
    pub stride: [usize; 3],
    pub padding: [usize; 3],
    pub groups: usize,
    /// The layer is the transpose of this convolution: its forward direction reads F channels.
    pub transposed: bool,
}

/// Channels from and to, extent, kernel, stride, count.
type Row = (&'static str, usize, usize, usize, usize, usize, usize);

fn layer(network: &'static str, samples: usize, dims: usize, row: &Row) -> Layer {
    let (name, c, f, extent, kernel, stride, count) = *row;
    let per_dim = |value: usize, absent: usize| match dims {
        2 => [absent, value, value],
        _ => [value; 3],
    };
    Layer {
        network,
        name,
        count,
        samples,
        c,
        f,
        extent: per_dim(extent, 1),
        kernel: per_dim(kernel, 1),
        stride: per_dim(stride, 1),
        padding: per_dim(
            if kernel == stride {
                0
            } else {
                (kernel - 1) / 2
            },
            0,
        ),
        groups: 1,
        transposed: false,
    }
}

const RESNET50: &[Row] = &[
    ("conv1", 3, 64, 224, 7, 2, 1),
    ("2.a", 64, 64, 56, 1, 1, 1),
    ("2.b", 64, 64, 56, 3, 1, 3),
    ("2.c", 64, 256, 56, 1, 1, 4),
    ("2.a'", 256, 64, 56, 1, 1, 2),
    ("3.a", 256, 128, 56, 1, 1, 1),
    ("3.b", 128, 128, 56, 3, 2, 1),
    ("3.c", 128, 512, 28, 1, 1, 4),
    ("3.shortcut", 256, 512, 56, 1, 2, 1),
    ("3.a'", 512, 128, 28, 1, 1, 3),
    ("3.b'", 128, 128, 28, 3, 1, 3),
    ("4.a", 512, 256, 28, 1, 1, 1),
    ("4.b", 256, 256, 28, 3, 2, 1),
    ("4.c", 256, 1024, 14, 1, 1, 6),
    ("4.shortcut", 512, 1024, 28, 1, 2, 1),
    ("4.a'", 1024, 256, 14, 1, 1, 5),
    ("4.b'", 256, 256, 14, 3, 1, 5),
    ("5.a", 1024, 512, 14, 1, 1, 1),
    ("5.b", 512, 512, 14, 3, 2, 1),
    ("5.c", 512, 2048, 7, 1, 1, 3),
    ("5.shortcut", 1024, 2048, 14, 1, 2, 1),
    ("5.a'", 2048, 512, 7, 1, 1, 2),
    ("5.b'", 512, 512, 7, 3, 1, 2),
];

const VGG16: &[Row] = &[
    ("1.1", 3, 64, 224, 3, 1, 1),
    ("1.2", 64, 64, 224, 3, 1, 1),
    ("2.1", 64, 128, 112, 3, 1, 1),
    ("2.2", 128, 128, 112, 3, 1, 1),
    ("3.1", 128, 256, 56, 3, 1, 1),
    ("3.2", 256, 256, 56, 3, 1, 2),
    ("4.1", 256, 512, 28, 3, 1, 1),
    ("4.2", 512, 512, 28, 3, 1, 2),
    ("5", 512, 512, 14, 3, 1, 3),
];

const UNET3D: &[Row] = &[
    ("down1.1", 1, 32, 64, 3, 1, 1),
    ("down1.2", 32, 64, 64, 3, 1, 1),
    ("down2.1", 64, 64, 32, 3, 1, 1),
    ("down2.2", 64, 128, 32, 3, 1, 1),
    ("down3.1", 128, 128, 16, 3, 1, 1),
    ("down3.2", 128, 256, 16, 3, 1, 1),
    ("bottom.1", 256, 256, 8, 3, 1, 1),
    ("bottom.2", 256, 512, 8, 3, 1, 1),
    ("up1.1", 768, 256, 16, 3, 1, 1),
    ("up1.2", 256, 256, 16, 3, 1, 1),
    ("up2.1", 384, 128, 32, 3, 1, 1),
    ("up2.2", 128, 128, 32, 3, 1, 1),
    ("up3.1", 192, 64, 64, 3, 1, 1),
    ("up3.2", 64, 64, 64, 3, 1, 1),
    ("last", 64, 3, 64, 1, 1, 1),
];

/// Transposed: from F to C channels, to the extent.
const UNET3D_UP: &[Row] = &[
    ("up1.0", 512, 512, 16, 2, 2, 1),
    ("up2.0", 256, 256, 32, 2, 2, 1),
    ("up3.0", 128, 128, 64, 2, 2, 1),
];

const COSMOFLOW128: &[Row] = &[
    ("c1", 4, 16, 128, 3, 1, 1),
    ("c2", 16, 32, 64, 3, 1, 1),
    ("c3", 32, 64, 32, 3, 1, 1),
    ("c4", 64, 128, 16, 3, 2, 1),
    ("c5", 128, 256, 4, 3, 1, 1),
    ("c6", 256, 256, 2, 3, 1, 2),
];

/// Channels per group, groups, extent.
const GROUPED: &[(&str, usize, usize, usize)] = &[
    ("depthwise 56", 1, 128, 56),
    ("depthwise 14", 1, 512, 14),
    ("4 a group", 4, 32, 56),
    ("8 a group", 8, 32, 28),
    ("16 a group", 16, 32, 14),
];

/// All layers.
pub fn layers() -> Vec<Layer> {
    let mut all = Vec::new();
    let mut table = |network, samples, dims, rows: &[Row]| {
        all.extend(rows.iter().map(|row| layer(network, samples, dims, row)));
    };
    table("resnet50", 4, 2, RESNET50);
    table("vgg16", 1, 2, VGG16);
    table("vgg16x4", 4, 2, VGG16);
    table("unet3d", 1, 3, UNET3D);
    table("unet3d", 1, 3, UNET3D_UP);
    table("cosmoflow128", 1, 3, COSMOFLOW128);
    for layer in all.iter_mut().filter(|l| l.network == "unet3d") {
        layer.transposed = layer.kernel == layer.stride && layer.kernel[2] > 1;
    }
    for (name, width, groups, extent) in GROUPED {
        let c = width * groups;
        let row = (*name, c, c, *extent, 3, 1, 1);
        all.push(Layer {
            groups: *groups,
            ..layer("grouped", 4, 2, &row)
        });
    }
    all
}
