import builtins
import html.parser
import logging
import math
import re
from pathlib import Path
from typing import Any

import pytest

from experiment.report.made_runs import (
    codec_variants,
    made_config,
    made_result,
    made_results,
    made_steps,
    step_line,
    write_run,
    write_sweep,
)
from ringwide.errors import ConfigError
from ringwide.experiment.report import compare, write_report

HOSTILE = "</title><script>alert(1)</script><img src=x onerror=alert(1)>"


class Tags(html.parser.HTMLParser):
    """What a browser would see: tags with their attributes, and that all are closed in order."""

    VOID = ("meta", "link", "img", "br")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        self.open += [] if tag in self.VOID else [tag]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def page_of(path: Path) -> str:
    assert path.suffix == ".html"
    page = path.read_text()
    check_alone(page)
    return page


def check_alone(page: str) -> None:
    tags = Tags(page).seen
    assert not re.search(r"(https?:)?//\w", page)
    assert not {"script", "img", "link", "iframe", "object", "base"} & {tag for tag, _ in tags}
    assert not [attrs for _, attrs in tags if "src" in attrs]
    links = [value or "" for _, attrs in tags for key, value in attrs.items() if key in ("href", "xlink:href")]
    assert all(link.startswith("#") or re.fullmatch(r"[\w%./-]+/report\.html", link) for link in links)
    ids = [attrs["id"] for _, attrs in tags if "id" in attrs]
    assert {link[1:] for link in links if link.startswith("#")} <= set(ids)


def titles(page: str) -> list[str]:
    return re.findall(r"<h2>(.*?)</h2>", page)


@pytest.fixture(scope="module")
def drawn_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = write_run(tmp_path_factory.mktemp("run"))
    assert write_report(directory) == directory / "report.html"
    return directory


def test_a_run_becomes_a_page_and_the_same_tables_as_markdown(drawn_run: Path) -> None:
    page = page_of(drawn_run / "report.html")
    assert titles(page) == [
        "Loss",
        "Accuracy on held-out samples",
        "Pace over time",
        "Where the time went",
        "Nodes",
        "Across nodes",
    ]
    told = (drawn_run / "report.md").read_text()
    for cell in ("3,000", "0.5100", "87.5 %", "6.00 MB/s", "20.0 %", "270 MB"):
        assert cell in page
        assert cell in told
    assert "banner" not in re.sub(r"<style>.*</style>", "", page, flags=re.DOTALL)
    assert sorted(path.name for path in drawn_run.iterdir()) == [
        "metrics.jsonl",
        "report.html",
        "report.md",
        "results.json",
    ]


def test_a_picture_is_drawn_in_the_colours_of_the_page(drawn_run: Path) -> None:
    page = page_of(drawn_run / "report.html")
    pictures = "".join(re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL))
    assert "var(--series-1)" in pictures
    assert not re.findall(r"#f[de]00\w\w", pictures)
    assert "prefers-color-scheme: dark" in page


def test_a_varying_learning_rate_is_drawn(tmp_path: Path) -> None:
    lines = [step_line(0, step, learning_rate=step / 100) for step in range(1, 50)]
    assert "Learning rate" in titles(page_of(write_report(write_run(tmp_path, lines=lines))))


def test_the_norm_of_clipped_gradients_is_drawn(tmp_path: Path) -> None:
    lines = [step_line(0, step, gradient_norm=1 / step) for step in range(1, 50)]
    assert "Gradient norm, before clipping" in titles(
        page_of(write_report(write_run(tmp_path / "clipped", lines=lines)))
    )
    lines = [step_line(0, step) for step in range(1, 50)]
    assert "Gradient norm" not in titles(page_of(write_report(write_run(tmp_path / "not", lines=lines))))


def test_hostile_words_stay_words(tmp_path: Path) -> None:
    config = made_config(report={"notes": HOSTILE, "beside": [{"name": HOSTILE, "batches_per_second": 1}]})
    results = made_results(
        name=HOSTILE,
        status=HOSTILE,
        label=HOSTILE,
        reason=HOSTILE,
        started=HOSTILE,
        config=config,
        versions={HOSTILE: HOSTILE},
    )
    directory = write_run(tmp_path / "a", results, [])
    check_alone(write_report(directory).read_text())
    check_alone(compare([directory, directory], tmp_path / "both.html").read_text())
    for told in (directory / "report.md", tmp_path / "both.md"):
        assert not re.search(r"(?<!\\)<(?!a/report.html>)", told.read_text())


def test_dollars_are_no_formulas(tmp_path: Path) -> None:
    config = made_config(report={"beside": [{"name": "$x_{$ \\frac", "batches_per_second": 1}]})
    assert "$x_{$ \\frac" in page_of(write_report(write_run(tmp_path, made_results(config=config), [])))


@pytest.mark.parametrize(
    ("status", "reason", "banner"),
    [
        ("stopped", "SIGINT", "Stopped early by SIGINT"),
        ("failed", "node 3 was killed by SIGKILL", "Failed: node 3 was killed by SIGKILL"),
    ],
)
def test_a_run_that_did_not_end_says_so(status: str, reason: str, banner: str, tmp_path: Path) -> None:
    page = page_of(write_report(write_run(tmp_path, made_results(status=status, reason=reason), [])))
    assert re.search(rf'class="banner" role="alert">{banner}', page)
    assert f"**{banner}" in (tmp_path / "report.md").read_text()


def test_a_run_of_which_no_node_left_a_result(tmp_path: Path) -> None:
    page = page_of(write_report(write_run(tmp_path, made_results({}, status="failed"), made_steps(steps=100))))
    assert ">300<" in page  # batches: three nodes told of a hundred steps each
    assert "Where the time went" in titles(page)


@pytest.mark.parametrize("plan", [None, {}])
def test_a_run_that_never_took_a_step(plan: Any, tmp_path: Path) -> None:
    directory = write_run(tmp_path, made_results({}, status="failed", plan=plan), [])
    (directory / "metrics.jsonl").unlink()
    page = page_of(write_report(directory))
    assert titles(page) == ["Nodes"]


def test_the_least_that_is_a_run(tmp_path: Path) -> None:
    assert titles(page_of(write_report(write_run(tmp_path, {"format": 1, "name": "x"}, [])))) == []


@pytest.mark.parametrize("loss", [math.nan, math.inf, 1e308, -1e308, 0.0])
def test_any_loss_can_be_drawn(loss: float, tmp_path: Path) -> None:
    lines = [step_line(0, step, loss=loss if step > 50 else 1.0) for step in range(1, 100)]
    results = made_results({0: made_result(0, loss=loss, test_loss=loss)}, config=made_config(nodes=1))
    page = page_of(write_report(write_run(tmp_path, results, lines)))
    assert ("From step 51 on some losses are not finite" in page) is not math.isfinite(loss)


def test_without_html_only_tables_are_written(tmp_path: Path) -> None:
    directory = write_run(tmp_path, made_results(config=made_config(report={"html": False})))
    assert write_report(directory) == directory / "report.md"
    assert not (directory / "report.html").exists()


@pytest.mark.parametrize("package", ["matplotlib", "jinja2"])
def test_without_packages_the_tables_are_written_and_the_cure_is_told(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = builtins.__import__

    def missing(name: str, *arguments: Any) -> Any:
        if name.partition(".")[0] == package:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
        return real(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", missing)
    with caplog.at_level(logging.WARNING):
        written = write_report(write_run(tmp_path))
    assert written == tmp_path / "report.md"
    assert not (tmp_path / "report.html").exists()
    assert caplog.messages == [
        f"{tmp_path}/report.html was not drawn, as {package} is not installed: pip install 'ringwide[experiments]'"
    ]


def test_a_sweep_is_one_page_that_leads_to_its_runs(tmp_path: Path) -> None:
    write_sweep(tmp_path, codec_variants("none", "lz4"))
    write_report(tmp_path / "02-codec=lz4")
    page = page_of(write_report(tmp_path))
    assert titles(page) == ["Batches per second", "Throughput", "Loss by step", "Loss by time", "Comparison"]
    assert page.count('href="02-codec%3Dlz4/report.html"') == 1
    assert 'href="01-' not in page  # it has no report
    assert "2 variants" in page


def test_a_sweep_that_was_stopped_before_its_first_run(tmp_path: Path) -> None:
    page = page_of(write_report(write_sweep(tmp_path, {}, status="stopped", reason="SIGTERM", sweep={"nodes": [1, 2]})))
    assert "0 of 2 variants" in page
    assert "Stopped early by SIGTERM" in page


def test_a_sweep_of_very_many(tmp_path: Path) -> None:
    page = page_of(write_report(write_sweep(tmp_path, codec_variants(*["none"] * 33))))
    assert "The 30 highest of 33." in page
    assert "The 14 of 33 with the lowest loss." in page


def test_runs_and_sweeps_are_compared_in_one_page(tmp_path: Path) -> None:
    alone = write_run(tmp_path / "six-1", made_results({0: made_result(0)}, status="failed"))
    sweep = write_sweep(tmp_path / "sweep", codec_variants("none", "lz4"))
    page = page_of(compare([alone, sweep], tmp_path / "new" / "both.html"))
    assert "Comparison of 3 runs" in page
    assert "Not complete: six (failed)." in page
    assert (tmp_path / "new" / "both.md").exists()


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, lines=[]) for name in ("six-1", "six-2")]
    page = page_of(compare(runs, tmp_path / "both.html"))
    assert re.findall(r'<th scope="row">([^<]*)', page)[:2] == ["six-1", "six-2"]


def test_a_report_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"both.md: the report cannot be written: "):
        compare([write_run(tmp_path / "a")], tmp_path / "file" / "both.html")
