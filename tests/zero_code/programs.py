"""Small programs that know nothing of stallmeter, each with what has to be found in it."""

from __future__ import annotations

import textwrap

HEAD = textwrap.dedent(
    """
    import time
    import torch
    from torch.utils.data import DataLoader, Dataset, TensorDataset

    torch.manual_seed(7)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def make_loader(batches=8, **more):
        return DataLoader(TensorDataset(torch.randn(batches * 4, 4)), batch_size=4, shuffle=True, **more)

    def update(batch, by=optimizer):
        by.zero_grad()
        model(batch).sum().backward()
        by.step()

    train, validation = make_loader(), make_loader(3)
    """
)

TAIL = textwrap.dedent(
    """
    print("weights", [float(p.double().sum()) for p in model.parameters()], float(torch.rand(1)))
    """
)

PROGRAMS = {
    "epochs": """
        for epoch in range(2):
            for (batch,) in train:
                update(batch)
            with torch.no_grad():
                for (batch,) in validation:
                    model(batch)
                    time.sleep(0.01)
        """,
    "inner no_grad": """
        for epoch in range(2):
            for (batch,) in train:
                update(batch)
            for (batch,) in validation:
                with torch.no_grad():
                    model(batch)
                    time.sleep(0.01)
        """,
    "validation in the midst": """
        for index, (batch,) in enumerate(train):
            update(batch)
            if index in (2, 5):
                for (batch,) in validation:
                    with torch.no_grad():
                        model(batch)
                        time.sleep(0.01)
        for index, (batch,) in enumerate(train):
            update(batch)
            if index == 3:
                for (batch,) in validation:
                    break
        """,
    "two loaders": """
        other = torch.optim.SGD(model.parameters(), lr=1e-4)
        for epoch in range(2):
            for (real,), (noise,) in zip(train, make_loader(8)):
                update(real)
                update(noise, other)
        """,
    "asked inside": """
        noises = iter(make_loader(40))
        for epoch in range(2):
            for (real,) in train:
                (noise,) = next(noises)
                update(real + noise)
        """,
    "accumulation": """
        for epoch in range(2):
            for index, (batch,) in enumerate(train):
                model(batch).sum().backward()
                if index % 4 == 3:
                    optimizer.step()
                    optimizer.zero_grad()
        """,
    "steps": """
        batches = iter(train)
        for _ in range(20):
            try:
                (batch,) = next(batches)
            except StopIteration:
                batches = iter(train)
                (batch,) = next(batches)
            update(batch)
        """,
    "looked at first": """
        shape = next(iter(train))[0].shape
        kept = iter(validation)
        next(kept)
        mean = sum(batch.mean() for (batch,) in train)
        for (batch,) in train:
            update(batch)
        for (batch,) in validation:
            model(batch)
            time.sleep(0.01)
        """,
    "new loaders": """
        for epoch in range(3):
            for (batch,) in make_loader(5):
                update(batch)
        """,
    "workers that never end": """
        class Endless(DataLoader):
            def __init__(self, *args, **kwargs):
                super().__init__(*args, **kwargs)
                object.__setattr__(self, "batch_sampler", Again(self.batch_sampler))
                self.iterator = super().__iter__()
                assert isinstance(self.iterator._num_yielded, int)
            def __len__(self):
                return len(self.batch_sampler.sampler)
            def __iter__(self):
                for _ in range(len(self)):
                    yield next(self.iterator)

        class Again:
            def __init__(self, sampler):
                self.sampler = sampler
            def __iter__(self):
                while True:
                    yield from iter(self.sampler)

        train = Endless(train.dataset, batch_size=4)
        validation = Endless(validation.dataset, batch_size=4)
        for epoch in range(2):
            for (batch,) in train:
                update(batch)
            with torch.inference_mode():
                for (batch,) in validation:
                    model(batch)
                    time.sleep(0.01)
        """,
    "tasks": """
        for (task,) in make_loader(3):
            for (batch,) in make_loader(4):
                update(batch)
        """,
    "all under no_grad": """
        with torch.no_grad():
            for epoch in range(2):
                for (batch,) in train:
                    with torch.enable_grad():
                        model(batch).sum().backward()
                    optimizer.step()
        """,
    "optimizer of its own": """
        for epoch in range(2):
            for (batch,) in train:
                model(batch).sum().backward()
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter -= 1e-3 * parameter.grad
                        parameter.grad = None
            for (batch,) in validation:
                with torch.no_grad():
                    model(batch)
        """,
    "compiled": """
        # Not as a decorator: Lightning 2.2 has a torch.compile of its own, which is none.
        compiled_step = torch.compile(lambda: optimizer.step(), backend="eager")

        for epoch in range(2):
            for (batch,) in train:
                optimizer.zero_grad()
                model(batch).sum().backward()
                compiled_step()
        """,
    "workers": """
        train = make_loader(16, num_workers=1)
        for epoch in range(2):
            for (batch,) in train:
                update(batch)
        """,
    "workers of two": """
        kept = iter(validation)
        train, other = make_loader(16, num_workers=1), make_loader(16, num_workers=2)
        for epoch in range(2):
            for (real,), (noise,) in zip(train, other):
                update(real + noise)
            for (batch,) in kept if epoch else ():
                model(batch)
        """,
    "a new iterator for each step": """
        class Late(TensorDataset):
            def __getitem__(self, index):
                time.sleep(0.002)
                return super().__getitem__(index)
        train, other = make_loader(num_workers=1), DataLoader(Late(torch.randn(64, 4)), batch_size=4, num_workers=1)
        for epoch in range(2):
            for (batch,) in train:
                update(batch + next(iter(other))[0])
        """,
    "accelerate": """
        from accelerate import Accelerator
        accelerator = Accelerator(cpu=True)
        model, optimizer, train, validation = accelerator.prepare(model, optimizer, train, validation)
        for epoch in range(2):
            for (batch,) in train:
                optimizer.zero_grad()
                accelerator.backward(model(batch).sum())
                time.sleep(0.01)
                optimizer.step()
            with torch.inference_mode():
                for (batch,) in validation:
                    model(batch)
                    time.sleep(0.01)
        """,
    "fabric": """
        from lightning.fabric import Fabric
        fabric = Fabric(accelerator="cpu", devices=1)
        model, optimizer = fabric.setup(model, optimizer)
        train, validation = fabric.setup_dataloaders(train, validation)
        for epoch in range(2):
            for (batch,) in train:
                optimizer.zero_grad()
                fabric.backward(model(batch).sum())
                optimizer.step()
            with torch.no_grad():
                for (batch,) in validation:
                    model(batch)
                    time.sleep(0.01)
        """,
    "calls that say what they are": """
        import io
        from lightning.fabric import Fabric
        class Slow:
            def on_step(self, seconds):
                time.sleep(seconds)
        fabric = Fabric(accelerator="cpu", devices=1, callbacks=[Slow()])
        class File(io.BytesIO):
            def write(self, data):
                time.sleep(0.001)
                return super().write(data)
        before = torch.save, Fabric.call
        for (batch,) in train:
            update(batch)
            fabric.call("on_step", 0.01)
            torch.save(model.state_dict(), File())
        torch.save(model.state_dict(), io.BytesIO())
        assert torch.save is torch.serialization.save
        """,
    "stateful": """
        from torchdata.stateful_dataloader import StatefulDataLoader
        train = StatefulDataLoader(train.dataset, batch_size=4)
        for index, (batch,) in enumerate(train):
            update(batch)
            if index == 2:
                state = train.state_dict()
                break
        train.load_state_dict(state)
        for (batch,) in train:
            update(batch)
        """,
    "exception": """
        for index, (batch,) in enumerate(train):
            update(batch)
            if index == 4:
                raise KeyError("no such thing")
        """,
    "nothing": """
        with torch.no_grad():
            for (batch,) in validation:
                model(batch)
        for (batch,) in train:
            model(batch)
        """,
    "no loader": """
        for _ in range(3):
            update(torch.ones(4, 4))
        """,
}


def program(name: str) -> str:
    """Return a program's text."""
    return HEAD + textwrap.dedent(PROGRAMS[name]) + TAIL
