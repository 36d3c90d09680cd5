import pytest
import torch

from echo2.coordinator.learner.messages import RANK_FAULT
from echo2.coordinator.learner.ranks.launch import RankLayout
from echo2.coordinator.learner.ranks.rank_orders import Answer, RankFault, raise_faults
from echo2.runtime.errors import DiskFull


def test_one_rank_needs_no_torchrun() -> None:
    assert RankLayout().torchrun == []


def test_the_ranks_of_one_host_meet_on_loopback() -> None:
    words = RankLayout(4).torchrun
    assert {"--nproc-per-node=4", "--nnodes=1", "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1"} <= set(words)
    assert not [word for word in words if "master" in word]


def test_the_ranks_of_several_hosts_meet_at_this_one() -> None:
    words = RankLayout(1, 2, "10.0.0.1:29500").torchrun
    assert {"--nnodes=2", "--node-rank=0", "--master-addr=10.0.0.1", "--master-port=29500"} <= set(words)
    assert not [word for word in words if "127.0.0.1" in word]


def test_the_ranks_of_other_hosts_are_named_with_the_place_where_they_are_awaited() -> None:
    sentences = [RankLayout(8, hosts, "10.0.0.1:29500" if hosts > 1 else "").elsewhere for hosts in (1, 2, 3)]
    assert sentences == [
        "",
        "the ranks of 1 other host at 10.0.0.1:29500",
        "the ranks of 2 other hosts at 10.0.0.1:29500",
    ]


def test_main_knows_the_fault_of_another_rank_by_its_name() -> None:
    assert RankFault.__name__ == RANK_FAULT


def test_a_fault_of_another_rank_is_raised_with_its_number_and_one_of_the_machine_as_such() -> None:
    raise_faults([Answer(), Answer()])
    with pytest.raises(RankFault, match="rank 2: BadTensors: another model's"):
        raise_faults([Answer(), Answer(fault=("BadTensors", "another model's"))])
    with pytest.raises(torch.OutOfMemoryError, match="rank 1: 2 GiB are free"):
        raise_faults([Answer(fault=("OutOfMemoryError", "2 GiB are free"))])
    with pytest.raises(DiskFull, match="no room"):
        raise_faults([Answer(fault=("DiskFull", "no room"))])
