"""The host file: its fields, its error messages, and the commands that ssh runs."""

import pytest

from remotely.ops.host_file import JoiningHost, parse_hosts
from remotely.ops.ssh import join_line, leave_line, with_hint
from remotely.protocol.listening import Ports

GOOD = """
address = "192.168.0.10"
hosts = [
  "node1",
  "ada@node2",
]

[[host]]
ssh = "node3"
cpus = 4
"""


def test_a_short_file_is_enough() -> None:
    file = parse_hosts('address = "10.0.0.1"\nhosts = ["a"]', "f")
    assert (file.master, file.port, file.command) == ("10.0.0.1", 8010, "remotely")
    assert file.all_hosts == [JoiningHost(ssh="a")]
    assert file.gpu_choice is None


def test_a_machine_may_have_its_own_settings() -> None:
    file = parse_hosts(GOOD, "f")
    assert [host.ssh for host in file.all_hosts] == ["node1", "ada@node2", "node3"]
    assert file.all_hosts[2].cpus == 4


def test_the_master_uses_the_port_of_its_address_or_the_first_of_the_range() -> None:
    more = '\nhosts = ["a"]\nports = "9000-9009"'
    assert parse_hosts(f'address = "n:8011"{more}', "f").port == 8011
    ranged = parse_hosts(f'address = "n"{more}', "f")
    assert (ranged.port, ranged.port_range) == (9000, Ports(9000, 9009))
    assert parse_hosts('address = "[fd00::1]:9"\nhosts = ["a"]', "f").master == "fd00::1"


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("cpus = 4", "cpu = 4", "line 10: cpu: there is no such field; the fields are ssh, cpus"),
        ("cpus = 4", 'cpus = "x"', "line 10: cpus: needs a whole number, not text in quotes"),
        ("cpus = 4", "gpus = 1.5", "line 10: gpus: needs a whole number or text, not a fraction"),
        ("cpus = 4", 'host = "x"', "line 10: host: there is no such field; the fields are ssh"),
        ("cpus = 4", 'announce = "x"', "line 10: announce: needs a list, not text in quotes"),
        ("cpus = 4", "cpus = -4", "line 10: cpus: -4 is negative"),
        ("cpus = 4", 'gpus = "many"', "line 10: gpus: "),
        ("cpus = 4", 'ports = "9"', "line 10: ports: '9' is not a range of ports"),
        ("cpus = 4", 'command = ""', "line 10: command: '' names nothing"),
        ("cpus = 4", 'announce = ["node4", ""]', "line 10: announce: '' names nothing"),
        ("cpus = 4", "cpus 4", "line 10: Expected"),
        ('ssh = "node3"\n', "", "line 8: ssh: is missing"),
        ('"node3"', '"-oProxyCommand=x"', "line 9: ssh: '-oProxyCommand=x' is not a valid host"),
        ('"node3"', '"node1"', "node1 is given twice"),
        ('"ada@node2"', '"-oProxyCommand=x"', "line 5: hosts: '-oProxyCommand=x' is not a valid"),
        ('"ada@node2"', "5", "line 3: hosts: needs text in quotes, not a whole number"),
        ("[[host]]", "[host]", "line 8: host: write each machine with its own settings as a table"),
        ("192.168.0.10", "a:b:c", "line 2: address: 'a:b:c' is not an address"),
        ('address = "192.168.0.10"', "", "address: is missing"),
        ("address", "adress", "line 2: adress: there is no such field; the fields are address"),
    ],
)
def test_an_error_names_its_line_and_field(old: str, new: str, told: str) -> None:
    assert old in GOOD
    with pytest.raises(ValueError, match=r"hosts\.toml, line") as error:
        parse_hosts(GOOD.replace(old, new), "hosts.toml")
    assert told in str(error.value)


def test_a_file_without_machines_is_refused() -> None:
    with pytest.raises(ValueError, match="none is given; name at least one"):
        parse_hosts('address = "a"', "f")


def test_each_machine_runs_a_command_with_its_settings() -> None:
    file = parse_hosts(
        'address = "10.0.0.1:9"\nports = "9000-9009"\n[[host]]\nssh = "a"\ncpus = 0\n'
        'gpus = "2,3"\naddress = "10.0.0.2"\nannounce = ["x", "y"]\ncommand = "/opt/remotely"',
        "f",
    )
    (host,) = file.all_hosts
    assert join_line(file, host) == (
        "/opt/remotely join 10.0.0.1:9 --key - --once --cpus 0 --gpus 2,3 --host 10.0.0.2 "
        "--ports 9000-9009 --announce x --announce y"
    )
    assert leave_line(file, host) == "/opt/remotely stop --joined 10.0.0.1:9"


@pytest.mark.parametrize(
    ("words", "code", "hint"),
    [
        ("Host key verification failed.", 255, "'ssh h1'"),
        ("root@h1: Permission denied (publickey).", 255, "ssh-copy-id h1"),
        ("ssh: connect to host h1 port 22: Connection timed out", 255, "'ssh h1' has to work"),
        ("bash: line 1: remotely: command not found", 127, 'command = "/path/to/remotely"'),
        ("bash: line 1: /opt/remotely: Permission denied", 126, 'command = "/path/to/remotely"'),
    ],
)
def test_an_error_of_ssh_is_followed_by_a_hint(words: str, code: int, hint: str) -> None:
    message = with_hint("h1", words, code)
    assert message.startswith(words.rstrip("."))
    assert hint in message
    assert with_hint("h1", "something\nelse", code).startswith("something else")


@pytest.mark.parametrize(
    "words",
    [
        "[Errno 13] Permission denied: /srv/u/.remotely/run",
        "No such file or directory: /tmp/x/remotely-abc",
        "no master at 10.0.0.1:8010: the connection timed out",
    ],
)
def test_an_error_of_remotely_itself_gets_no_hint_about_ssh(words: str) -> None:
    assert with_hint("h1", words, 1) == words
