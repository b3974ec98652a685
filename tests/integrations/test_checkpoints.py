"""Checkpoints that are saved in the midst of training in a session, and resumed in another or in none."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import memfit
from integrations.networks import BUDGET, WIDTH, batches, limited, network, pinned, state_of
from memfit.integrations import conflicts
from running.plainly import same_bits

pytestmark = [pytest.mark.timeout(120), pytest.mark.filterwarnings("ignore")]
SAVED_AT, STEPS = 4, 8
BUDGETS = [(BUDGET, BUDGET), (BUDGET, None), (None, BUDGET)]  # until the checkpoint, and from there on
budgets = pytest.mark.parametrize(("before", "after"), BUDGETS, ids=["both", "saved", "resumed"])


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Import what takes seconds before the tests, so that their calls' CPU time does not include it."""
    for name in ("accelerate", "keras", "lightning.pytorch", "transformers"):
        with suppress(ImportError):
            importlib.import_module(name)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int) -> None:
    for batch in batches(STEPS).split(32)[first:last]:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()


def begun() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = network()
    return model, torch.optim.AdamW(model.parameters())


def in_torch_s_format(folder: Path) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def save(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        torch.save([model.state_dict(), optimizer.state_dict()], folder / "file")

    def load(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        weights, state = torch.load(folder / "file")
        model.load_state_dict(weights)
        optimizer.load_state_dict(state)

    return save, load


def mapped(folder: Path) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def load(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        weights, state = torch.load(folder / "file", mmap=True)
        model.load_state_dict(weights)
        optimizer.load_state_dict(state)

    return in_torch_s_format(folder)[0], load


def in_safetensors(folder: Path) -> tuple[Callable[..., Any], Callable[..., Any]]:
    library = pytest.importorskip("safetensors.torch")

    def save(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        library.save_model(model, folder / "model")
        state = optimizer.state_dict()["state"]
        library.save_file({f"{i}.{name}": value for i in state for name, value in state[i].items()}, folder / "state")

    def load(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        library.load_model(model, folder / "model")
        whole = optimizer.state_dict()
        for key, value in library.load_file(folder / "state").items():
            number, name = key.split(".")
            whole["state"].setdefault(int(number), {})[name] = value
        optimizer.load_state_dict(whole)

    return save, load


def named(pair: tuple[Any, Any]) -> dict[str, Any]:
    return dict(zip(("model", "optimizer"), pair, strict=True))


def distributed(folder: Path) -> tuple[Callable[..., Any], Callable[..., Any]]:
    import torch.distributed.checkpoint as library
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    def save(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        library.save(named(get_state_dict(model, optimizer)), checkpoint_id=folder, no_dist=True)

    def load(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        state = named(get_state_dict(model, optimizer))
        library.load(state, checkpoint_id=folder, no_dist=True)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])

    return save, load


def distributed_beside_training(folder: Path) -> tuple[Callable[..., Any], Callable[..., Any]]:
    import torch.distributed.checkpoint as library
    from torch.distributed.checkpoint.state_dict import get_state_dict

    def save(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
        state = named(get_state_dict(model, optimizer))
        return library.async_save(state, checkpoint_id=folder, no_dist=True)

    return save, distributed(folder)[1]


def by_accelerate(folder: Path) -> tuple[Callable[..., Any], Callable[..., Any]]:
    library = pytest.importorskip("accelerate")

    def save(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        accelerator = library.Accelerator(cpu=True)
        accelerator.prepare(model, optimizer)
        accelerator.save_state(folder)
        accelerator.save_model(model, folder / "model")

    def load(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        accelerator = library.Accelerator(cpu=True)
        accelerator.prepare(model, optimizer)
        accelerator.load_state(folder)

    return save, load


WAYS = [in_torch_s_format, mapped, in_safetensors, distributed, distributed_beside_training, by_accelerate]


@budgets
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_training_goes_on_from_a_checkpoint_as_if_it_had_not_been_interrupted(tmp_path, way, before, after):
    model, optimizer = begun()
    train(model, optimizer, 0, STEPS)
    uninterrupted = state_of(model, optimizer)

    save, load = way(tmp_path)
    model, optimizer = begun()
    with limited(before) as session:
        train(model, optimizer, 0, SAVED_AT)
        saving = save(model, optimizer)
        train(model, optimizer, SAVED_AT, SAVED_AT + 2)  # what is saved beside training does not change
        assert pinned(session, model) == 0
        if saving is not None:
            saving.result()
    model, optimizer = begun()
    with limited(after) as session:
        load(model, optimizer)
        train(model, optimizer, SAVED_AT, STEPS)
        assert pinned(session, model) == 0
    assert same_bits(uninterrupted, state_of(model, optimizer))


@pytest.mark.long
@budgets
def test_hugging_face_s_trainer_resumes(tmp_path, before, after):
    pytest.importorskip("transformers")
    from integrations.test_huggingface import trainer

    def run(folder: Path, steps: int, budget: int | None, **options: Any) -> list[object]:
        one = trainer(folder, steps=steps, save_strategy="steps", save_steps=SAVED_AT, lr_scheduler_type="constant")
        with limited(budget) as session:
            one.train(**options)
            assert pinned(session, one.model) == 0
        return state_of(one.model, one.optimizer)

    uninterrupted = run(tmp_path / "plain", STEPS, None)
    run(tmp_path / "limited", SAVED_AT, before)
    assert same_bits(uninterrupted, run(tmp_path / "limited", STEPS, after, resume_from_checkpoint=True))


@pytest.mark.long
@budgets
def test_lightning_s_trainer_resumes(tmp_path, before, after):
    pytest.importorskip("lightning")
    from lightning.pytorch.callbacks import ModelCheckpoint

    from integrations.test_lightning import lightning_module, loader, trainer

    def run(epochs: int, budget: int | None, **options: Any) -> list[object]:
        module, saver = lightning_module(), ModelCheckpoint(dirpath=tmp_path, filename=f"{budget}")
        one = trainer(tmp_path, max_epochs=epochs, callbacks=[saver], enable_checkpointing=True)
        with limited(budget) as session:
            one.fit(module, loader(), **options)
            assert pinned(session, module) == 0
        return state_of(module, one.optimizers[0])

    uninterrupted = run(2, None)
    (tmp_path / "None.ckpt").unlink()
    run(1, before)
    assert same_bits(uninterrupted, run(2, after, ckpt_path=str(tmp_path / f"{before}.ckpt")))


@pytest.mark.long
@budgets
@pytest.mark.parametrize("name", ["model.keras", "model.weights.h5"])
def test_keras_resumes(tmp_path, name, before, after):
    keras = pytest.importorskip("keras")
    from integrations.test_keras import fit, network, state_of

    def resumed() -> Any:
        if name.endswith(".keras"):
            return keras.saving.load_model(tmp_path / name)
        model = network()
        model.optimizer.build(model.trainable_variables)
        model.load_weights(tmp_path / name)
        return model

    model = network()
    fit(model)
    uninterrupted = state_of(model)

    model = network()
    with limited(before) as session:
        fit(model, epochs=1)
        model.save(tmp_path / name) if name.endswith(".keras") else model.save_weights(tmp_path / name)
        fit(model, epochs=1)
        assert pinned(session, model) == 0
    assert same_bits(uninterrupted, state_of(model))
    with limited(after) as session:
        model = resumed()
        fit(model, epochs=1)
        assert pinned(session, model) == 0
    assert same_bits(uninterrupted, state_of(model))


def test_a_pretrained_model_is_saved_and_loaded_in_a_session(tmp_path):
    library = pytest.importorskip("transformers")
    config = library.GPT2Config(vocab_size=100, n_positions=32, n_embd=WIDTH, n_layer=2, n_head=2, bos_token_id=1,
                                eos_token_id=1)  # fmt: skip
    torch.manual_seed(0)
    model = library.GPT2LMHeadModel(config).eval()  # without dropout
    tokens = torch.randint(0, 100, (4, 32))
    plain = model(tokens).logits.detach()
    with memfit.session(2 * BUDGET, "ram") as session:
        model.save_pretrained(tmp_path)
        loaded = library.GPT2LMHeadModel.from_pretrained(tmp_path)
        inside = loaded(tokens).logits.detach()
        assert pinned(session, model) == 0
        assert [*conflicts.of_model(loaded)] == [conflicts.OUTSIDE] and not [*conflicts.of_model(model)]
        for weight in loaded.parameters():  # as that one says
            weight.data = weight.data.clone()
        assert not [*conflicts.of_model(loaded)] and loaded.lm_head.weight is loaded.transformer.wte.weight
        assert torch.equal(plain, loaded(tokens).logits)
    assert session.stats.evictions > 0 and torch.equal(plain, inside)
    assert same_bits(dict(model.state_dict()), dict(loaded.state_dict()))
