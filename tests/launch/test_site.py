"""A site file is checked whole before anything is submitted."""

from pathlib import Path

import pytest

from spectral_conditioning.errors import ConfigError
from spectral_conditioning.launch.site import Site, find_site, read_site, templates_directory, value_from_text


def site(text: str, **changes: object) -> Site:
    Path("mine.yaml").write_text(text)
    return read_site("mine.yaml", {"the study": changes})


def test_the_example_is_complete_and_valid():
    import dataclasses

    text = (templates_directory() / "sites" / "example.yaml").read_text()
    named = {line.split(":")[0] for line in text.splitlines() if line and not line.startswith("#")}
    assert named == {field.name for field in dataclasses.fields(Site)}
    assert read_site("example").partition == "gpu"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("partion: gpu", ["unknown key 'partion'", "closest 'partition'"]),
        ("time: 24:00:00", ["time is 86400", "quotes"]),
        ("time: soon", ["time is 'soon'"]),
        ("gpus: gress", ["gpus is 'gress'", "gres, gpus-per-node, none"]),
        ("cpus_per_task: many", ["cpus_per_task is 'many'", "int"]),
        ("modules: cuda", ["modules is 'cuda'", "list"]),
        ("options: [exclude=n1]", ["starts with '--'"]),
        ("environment: {A-B: 1}", ["'A-B'"]),
        ("partition: 'a\n\n  b'", ["line break"]),
        ("max_restarts: -1\nwarn_seconds: -5", ["2 problems", "max_restarts", "warn_seconds"]),
    ],
)
def test_a_bad_site_names_thing_value_and_fix(text: str, parts: list[str]):
    with pytest.raises(ConfigError) as caught:
        site(text)
    for part in parts:
        assert part in str(caught.value)


def test_resources_and_the_command_line_override_single_values():
    assert site("partition: a\ntime: '1:00:00'", partition="b").partition == "b"
    assert value_from_text("time", "2:00:00") == "2:00:00"
    assert value_from_text("time", "30") == "30"
    assert value_from_text("account", "null") is None
    assert value_from_text("cpus_per_task", "4") == 4


def test_sites_are_found_by_name_nearest_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "example.yaml").write_text("partition: own")
    monkeypatch.setenv("SPECTRAL_SITES", str(tmp_path / "mine"))
    assert read_site("example").partition == "own"
    with pytest.raises(ConfigError, match="closest 'example'"):
        find_site("exampel")
