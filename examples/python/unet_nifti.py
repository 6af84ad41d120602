"""A residual U-Net of one's own, trained on NIfTI volumes that are cut in two."""

import gzip
import os
import struct
import tempfile

import numpy
import partita
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, channels, filters):
        super().__init__()
        self.conv1 = nn.Conv3d(channels, filters, 3, padding=1)
        self.norm = nn.InstanceNorm3d(filters, affine=True)
        self.conv2 = nn.Conv3d(filters, filters, 3, padding=1)
        self.skip = nn.Conv3d(channels, filters, 1)
        self.relu = nn.ReLU()

    def forward(self, x):
        return self.relu(self.conv2(self.relu(self.norm(self.conv1(x)))) + self.skip(x))


class ResidualUNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = Block(1, 4)
        self.pool = nn.MaxPool3d(2)
        self.middle = Block(4, 8)
        self.up = nn.ConvTranspose3d(8, 4, 2, stride=2)
        self.out = Block(8, 4)
        self.head = nn.Conv3d(4, 2, 1)

    def forward(self, x):
        down = self.down(x)
        up = self.up(self.middle(self.pool(down)))
        return self.head(self.out(torch.cat([up, down], dim=1)))


def write_nifti(path, volume):
    """Writes a volume (W, H, D) of float32 as NIfTI-1, with voxels of a millimeter."""
    header = bytearray(352)
    struct.pack_into("<i", header, 0, 348)
    struct.pack_into("<8h", header, 40, 3, *volume.shape, 1, 1, 1, 1)
    struct.pack_into("<hh", header, 70, 16, 32)
    struct.pack_into("<8f", header, 76, 1, 1, 1, 1, 1, 1, 1, 1)
    struct.pack_into("<3f", header, 108, 352, 1, 0)
    struct.pack_into("<hh", header, 252, 0, 1)
    for row in range(3):
        struct.pack_into("<4f", header, 280 + 16 * row, *(float(row == column) for column in range(4)))
    header[344:348] = b"n+1\0"
    with gzip.open(path, "wb") as file:
        file.write(bytes(header) + volume.astype("<f4").tobytes(order="F"))


def main():
    torch.manual_seed(0)
    random = numpy.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        task = os.path.join(folder, "task")  # as of nnU-Net and the Medical Segmentation Decathlon
        os.makedirs(os.path.join(task, "imagesTr"))
        os.makedirs(os.path.join(task, "labelsTr"))
        for case in range(8):
            labels = numpy.zeros((16, 16, 16))
            corner = random.integers(0, 8, 3)
            labels[tuple(slice(start, start + 8) for start in corner)] = 1
            image = labels + 0.3 * random.standard_normal(labels.shape)
            write_nifti(os.path.join(task, "imagesTr", f"case{case}.nii.gz"), image)
            write_nifti(os.path.join(task, "labelsTr", f"case{case}.nii.gz"), labels)
        data = os.path.join(folder, "set")
        partita.convert(task, out=data, split="0.5,0.25,0.25")

        module = ResidualUNet()
        model = partita.from_torch(module, torch.zeros(1, 1, 16, 16, 16))
        trained = partita.train(
            model,
            data,
            batch=2,
            epochs=4,
            ranks=2,
            strategy="depth=2",
            loss="dice_cross_entropy smooth=1",
            schedule={"learning_rate": 1e-2},
            output=os.path.join(folder, "out"),
        )
        print([round(epoch.training_loss, 4) for epoch in trained.epochs])
        assert trained.loss < trained.epochs[0].training_loss
        found = partita.evaluate(trained, split="test")
        print("loss on the test split", found.metrics.loss)
        classes = partita.infer(trained, split="test", output="classes")
        print("predicted", classes.shape)
        partita.to_torch(trained, module)


if __name__ == "__main__":
    main()
