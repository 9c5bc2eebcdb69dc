"""analysis.live.address: where a live view listens, and by which names it may be asked for."""

import socket

import pytest

from analysis.live.address import Address
from conf import ConfigError


@pytest.mark.parametrize(
    ("words", "host", "port"),
    [
        ("8090", "127.0.0.1", 8090),
        ("0", "127.0.0.1", 0),
        ("0.0.0.0:8090", "0.0.0.0", 8090),
        ("[::1]:8090", "::1", 8090),
        ("head.example:65535", "head.example", 65535),
    ],
)
def test_a_port_alone_is_this_machine(words: str, host: str, port: int) -> None:
    assert Address.from_words(words, "--live") == Address(host, port)


@pytest.mark.parametrize(
    "words", ["", "eighty", "65536", "-1", "1e3", ":8090", "[]:1", "host:", "8" * 9999, "\u0663", "1\n2"]
)
def test_anything_else_is_refused_in_one_line(words: str) -> None:
    with pytest.raises(ConfigError, match="^--live .*: give a port") as error:
        Address.from_words(words, "--live")
    assert "\n" not in str(error.value) and len(str(error.value)) < 300


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9", "127.0.0.1:8090", "[::1]:8090", "127.0.0.1"])
def test_every_address_answers_to_this_machines_own_names(host: str) -> None:
    assert Address("127.0.0.1", 8090).is_named(host)
    assert Address("0.0.0.0", 8090).is_named(host)


@pytest.mark.parametrize(
    "host", ["", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example:8090", "10.0.0.1", "[::2]"]
)
def test_loopback_answers_to_no_other_name(host: str) -> None:
    assert not Address("127.0.0.1", 8090).is_named(host)


def test_beyond_loopback_a_number_will_do_and_a_strangers_name_will_not() -> None:
    wide = Address("0.0.0.0", 8090)
    assert wide.is_named("10.0.0.1:8090") and wide.is_named(socket.gethostname())
    assert not wide.is_named("evil.example")
    assert Address("head.example", 1).is_named("Head.Example:1")


def test_what_only_this_machine_reaches() -> None:
    assert all(Address(host, 1).is_loopback for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost"))
    assert not any(Address(host, 1).is_loopback for host in ("0.0.0.0", "::", "10.0.0.1", "head.example"))
    assert Address("::1", 5).url == "http://[::1]:5/"
    assert socket.gethostname() in Address("0.0.0.0", 5).url


def test_a_port_that_is_taken_is_refused() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match="--live 127.0.0.1:.*cannot listen there"):
            Address("127.0.0.1", taken.getsockname()[1]).refuse_taken("--live")
    Address("127.0.0.1", 0).refuse_taken("--live")
