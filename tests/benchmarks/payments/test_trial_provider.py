"""The demo's payout provider: how it fails, that it moves money once, and what the rail over HTTPS makes of it."""

import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks.payments.trial_provider import TOKEN, URL, TrialProvider, record
from echo2.runtime.checkout import checkout_command
from echo2_rails.https_rail import HttpsRail, connect_provider


class Asked:
    """A provider, and its record in memory."""

    def __init__(self) -> None:
        self.rows: list[dict[str, object]] = []
        self.provider = TrialProvider(self.rows.append)

    def send(self, key: str, amount: int = 100) -> tuple[int, int]:
        body = msgspec.json.encode({"key": key, "account": "acct", "amount": amount, "currency": "USD"})
        answer = self.provider.answer("POST", "/payouts", body)
        return answer.status, answer.copies

    def state(self, key: str) -> Any:
        answer = self.provider.answer("GET", f"/payouts/{key}", b"")
        return msgspec.json.decode(answer.body)["state"] if answer.status in (200, 202, 404) else answer.status

    def transfers(self) -> list[object]:
        return [row["transfer"] for row in self.rows if "transfer" in row]


def test_the_first_payment_meets_a_429_and_an_answer_that_is_lost() -> None:
    asked = Asked()
    assert asked.send("a") == (429, 1)
    assert asked.state("a") == "absent"
    assert asked.send("a") == (200, 0)
    assert asked.state("a") == "done"
    assert asked.send("a") == (200, 1)
    assert asked.transfers() == ["a"]


def test_the_second_meets_a_500_and_a_503_and_is_answered_twice() -> None:
    asked = Asked()
    asked.send("a")
    assert asked.send("b") == (500, 1)
    assert asked.state("b") == 503
    assert asked.state("b") == "absent"
    assert asked.send("b") == (200, 2)
    assert asked.state("b") == "done"
    assert asked.transfers() == ["b"]


def test_the_third_waits_for_a_webhook_that_never_comes_and_then_the_money_comes_back() -> None:
    asked = Asked()
    asked.send("a")
    asked.send("b")
    assert asked.send("c") == (202, 1)
    assert [asked.state("c") for _ in range(3)] == ["done", "returned", "returned"]
    assert {"webhook": "c", "delivered": False} in asked.rows
    assert {"returned": "c"} in asked.rows
    assert asked.transfers() == ["c"]


def test_a_quote_names_the_fee_and_other_paths_are_unknown() -> None:
    provider = Asked().provider
    assert provider.answer("POST", "/quotes", b"{}").body == b'{"fee":25}'
    assert provider.answer("DELETE", "/payouts/a", b"").status == 404


@contextmanager
def serving(place: Path) -> Iterator[str]:
    """Run the provider's process; yield its address."""
    (place / TOKEN).write_text("secret-token\n")
    (place / TOKEN).chmod(0o600)
    argv = checkout_command("benchmarks.payments.trial_provider", str(place))
    with subprocess.Popen(argv, cwd=place) as process:
        try:
            until = time.monotonic() + 60
            while not (place / URL).exists():
                assert process.poll() is None
                assert time.monotonic() < until
                time.sleep(0.01)
            yield (place / URL).read_text()
        finally:
            process.terminate()
    assert process.returncode == 0


@pytest.mark.slow
async def test_the_rail_over_https_gets_through_to_it_and_confuses_no_answers(tmp_path: Path) -> None:
    with serving(tmp_path) as url:
        tls = ssl.create_default_context(cafile=str(tmp_path / "authority.pem"))
        async with connect_provider(url, tmp_path / TOKEN, tls) as exchange:
            rail = HttpsRail(exchange, "USD")
            assert (await rail.quote("acct_a", 100)).fee == 25
            assert (await rail.send("a", "acct_a", 100)).word == "busy"
            assert (await rail.status("a")).word == "absent"
            assert (await rail.send("a", "acct_a", 100)).word == "unknown", "it was done, and the answer is lost"
            assert (await rail.status("a")).word == "done"
            assert (await rail.send("b", "acct_b", 200)).word == "unknown"
            assert [(await rail.status("b")).word for _ in range(2)] == ["unknown", "absent"]
            assert (await rail.send("b", "acct_b", 200)).word == "done"
            after = await rail.status("a")
            assert after.word == "unknown" or (after.word, after.amount) == ("done", 100), "b was answered twice"
        async with connect_provider(url, tmp_path / TOKEN, tls) as exchange:
            assert (await HttpsRail(exchange, "USD").status("b")).amount == 200
        async with connect_provider(url, tmp_path / TOKEN) as exchange:
            untrusted = await HttpsRail(exchange, "USD").status("a")
            assert untrusted.word == "unknown"
            assert "certificate" in untrusted.why.lower()
        (tmp_path / TOKEN).write_text("another-token\n")
        async with connect_provider(url, tmp_path / TOKEN, tls) as exchange:
            assert "credentials" in (await HttpsRail(exchange, "USD").status("a")).why
    rows = record(tmp_path)
    assert [row["transfer"] for row in rows if "transfer" in row] == ["a", "b"]


@pytest.mark.parametrize("name", ["server.pem", TOKEN])
@pytest.mark.slow_but("server.pem")
def test_no_other_user_reads_its_secrets(tmp_path: Path, name: str) -> None:
    with serving(tmp_path):
        assert (tmp_path / name).stat().st_mode & 0o077 == 0
