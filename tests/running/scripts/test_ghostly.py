"""Ops on parameters without values, in this process and without an engine."""

import copy

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._foreach_utils import _has_foreach_support

from memfit.errors import InputError
from memfit.running.scripts.ghostly import ghostly


def is_ghost(tensor):
    return isinstance(tensor, FakeTensor)


def test_parameters_buffers_and_what_is_made_of_them_are_ghosts_and_data_is_not():
    with ghostly():
        model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4))
        data = torch.randn(3, 8)
        made = model(data)
        assert is_ghost(made) and made.shape == (3, 4) and not is_ghost(data)
        assert all(map(is_ghost, [*model.parameters(), *model.buffers()]))
        assert isinstance(model[0].weight, nn.Parameter) and model[0].weight.requires_grad
        made.sum().backward()
        assert is_ghost(model[0].weight.grad) and model[0].weight.grad.shape == (4, 8)
        labels = torch.randint(3, (3,)).tolist()
        assert all(type(label) is int and 0 <= label < 3 for label in labels)


def test_a_tensor_becomes_one_ghost_however_often_it_is_used():
    with ghostly():
        weight = nn.Parameter(torch.ones(4))
        data = torch.randn(4, requires_grad=True)
        with torch.no_grad():
            first, second = (torch.add(weight, data) for _ in range(2))
        assert is_ghost(first) and first.untyped_storage()._cdata != second.untyped_storage()._cdata
        saved = [torch.mul(nn.Parameter(torch.ones(4)), data).grad_fn._saved_other for _ in range(2)]
        assert saved[0].untyped_storage()._cdata == saved[1].untyped_storage()._cdata


def test_what_is_written_from_a_ghost_is_one_from_then_on_and_so_are_its_views():
    with ghostly():
        gradient = nn.Parameter(torch.ones(4)).detach()
        data, sums, parts = torch.ones(4), torch.zeros(4), torch.zeros(2, 4)
        view = parts[1]
        (data * gradient, sums.add_(gradient), parts.__setitem__(0, gradient))
        assert not is_ghost(data * 2) and is_ghost(sums * 2) and is_ghost(parts.sum()) and is_ghost(view * 2)
        assert sums.tolist() == [1.0] * 4 and data.tolist() == [1.0] * 4


def test_a_factory_that_makes_very_much_takes_no_memory():
    with ghostly():
        many = 1 << 40
        made = [torch.zeros(1 << 20, 1 << 20), torch.randn((many,)), torch.full(size=(many,), fill_value=1)]
        assert all(map(is_ghost, made)) and not is_ghost(torch.zeros(1 << 10))
        assert is_ghost(made[0].new_zeros(4)) and is_ghost(torch.zeros_like(made[1]))
        assert made[0][:2, 0].tolist() == [1.0, 1.0]


def test_numbers_read_from_ghosts_are_made_up():
    with ghostly():
        loss = nn.Parameter(torch.zeros(2, 2)).sum()
        assert loss.item() == float(loss) == 1.0 and not bool(loss > 3) and int(loss.long()) == 1
        grid = nn.Parameter(torch.zeros(2, 2)).detach()
        assert grid.tolist() == [[1.0, 1.0], [1.0, 1.0]] and grid.cpu().numpy().shape == (2, 2)
        assert f"{loss:.2f}" == "1.00"


def test_a_number_in_a_tensor_stays_real_when_ghosts_are_added_to_it():
    with ghostly():
        total = torch.zeros(())
        total += nn.Parameter(torch.zeros(2)).sum().detach()
        assert not is_ghost(total)


def test_a_gpu_stands_for_the_cpu():
    with ghostly():
        model = nn.Linear(4, 4, device="cuda").to("cuda:1").cuda()
        made = model(torch.zeros(2, 4, device=torch.device("cuda")).cuda())
        assert is_ghost(made) and made.device.type == "cpu"


def test_autocast_is_that_of_the_device_also_of_a_gpu():
    with ghostly():
        model, data = nn.Linear(4, 4), torch.zeros(2, 4)
        assert model(data).dtype is torch.float32
        for device in ("cpu", "cuda"):
            with torch.autocast(device, dtype=torch.bfloat16):
                assert model(data).dtype is torch.bfloat16


def test_a_module_is_converted_and_copied():
    with ghostly():
        model = nn.Linear(4, 4).to(torch.bfloat16)
        assert model.weight.dtype is torch.bfloat16 and isinstance(model.weight, nn.Parameter)
        twin = copy.deepcopy(model)
        assert is_ghost(twin.weight) and twin.weight is not model.weight


def test_ops_on_lists_take_ghosts_as_they_take_tensors():
    with ghostly():
        weight = nn.Linear(4, 4).weight.detach()
        assert _has_foreach_support([weight], torch.device("cpu"))
    assert not _has_foreach_support([weight], torch.device("cpu"))


def test_what_needs_values_is_named_with_its_line():
    with pytest.raises(InputError) as caught, ghostly():
        torch.nonzero(nn.Parameter(torch.ones(4)))
    assert "nonzero" in caught.value.what and f"{__file__}:" in caught.value.what
    assert "memfit trace" in caught.value.remedy


def test_afterwards_torch_is_as_it_was():
    kept = nn.Parameter.__new__, nn.Module.register_buffer, nn.Module._apply, torch.autocast.__init__
    with ghostly():
        assert nn.Module._apply is not kept[2]
    assert (nn.Parameter.__new__, nn.Module.register_buffer, nn.Module._apply, torch.autocast.__init__) == kept
    assert not is_ghost(nn.Parameter(torch.ones(1)))
