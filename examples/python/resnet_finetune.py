"""A ResNet of torchvision, fine-tuned on a dataset of PyTorch and loaded back."""

import partita
import torch
import torchvision


class Images(torch.utils.data.Dataset):
    """Images of noise, brighter in the second class."""

    def __init__(self, count, seed):
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.arange(count) % 2
        self.images = torch.rand(count, 3, 64, 64, generator=generator) + self.labels[:, None, None, None]

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.images[index], self.labels[index]


def main():
    torch.manual_seed(0)
    module = torchvision.models.resnet18(num_classes=2)  # with weights="DEFAULT" and a new `fc`, of ImageNet
    model = partita.from_torch(module, torch.zeros(2, 3, 64, 64))
    trained = partita.train(
        model,
        {"train": Images(16, seed=1), "validation": Images(8, seed=2)},
        batch=8,
        epochs=2,
        ranks=2,
        strategy="data=2",
        loss="softmax_cross_entropy",
        freeze=["conv1*", "layer1*"],
        optimizer="sgd",
        schedule={"learning_rate": 1e-2},
    )
    print([round(epoch.training_loss, 4) for epoch in trained.epochs])
    before = module.layer1[0].conv1.weight.clone()
    partita.to_torch(trained, module)
    assert torch.equal(before, module.layer1[0].conv1.weight), "a frozen layer has changed"

    # The module computes what Partita does.
    images = torch.stack([Images(8, seed=2)[index][0] for index in range(8)])
    own = torch.from_numpy(partita.infer(trained, images.numpy()))
    with torch.no_grad():
        theirs = module.eval()(images)
    worst = (own.reshape(theirs.shape) - theirs).abs().max().item()
    print(f"outputs differ by {worst:.1e} at most")
    assert worst < 1e-2 * theirs.abs().max().item()


if __name__ == "__main__":
    main()
