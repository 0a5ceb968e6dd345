"""The site of docs/ builds without a warning, leads nowhere that is not there, and fetches nothing from elsewhere."""

import itertools
import os
import posixpath
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlparse

import pytest

pytestmark = pytest.mark.slow

pytest.importorskip("zensical", reason='the site is built with zensical: pip install zensical, or ".[dev]"')

ROOT = Path(__file__).parent.parent
# What a browser fetches by itself when it meets the tag; an `a` is followed by people alone.
FETCHED = {
    "script": ["src"],
    "img": ["src", "srcset"],
    "iframe": ["src"],
    "source": ["src", "srcset"],
    "video": ["src", "poster"],
    "audio": ["src"],
    "embed": ["src"],
    "object": ["data"],
    "link": ["href"],
    "form": ["action"],
    "use": ["href", "xlink:href"],
}
# Elements for which the theme's own script would load a library from elsewhere.
LOADING = {"mermaid", "glightbox", "arithmatex", "pyodide", "md-source"}


class Page(HTMLParser):
    """What of a page matters here: where it leads, what it loads, and what can be linked to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.classes: set[str] = set()
        self.headings: list[str] = []
        self.images_without_text = 0
        self.language = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.classes |= set(found.get("class", "").split())
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        if tag == "html":
            self.language = found.get("lang", "")
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(tag)
        self.images_without_text += tag == "img" and not found.get("alt")
        self.loads += [found[name] for name in FETCHED.get(tag, []) if name in found]
        self.loads += outside_of_styles(found.get("style", ""))


def outside_of_styles(text: str) -> list[str]:
    return re.findall(r"url\(\s*['\"]?([^'\")]+)", text) + re.findall(r"@import\s+['\"]([^'\"]+)", text)


def is_outside(address: str) -> bool:
    return bool(urlparse(address).netloc) or address.startswith("//")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make docs` has built, or else built from a copy, because zensical only writes next to its configuration."""
    if "SITE" in os.environ:
        return Path(os.environ["SITE"])
    folder = tmp_path_factory.mktemp("site")
    shutil.copy(ROOT / "zensical.toml", folder)
    shutil.copytree(ROOT / "docs", folder / "docs", ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", str(folder / "zensical.toml")]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, Page]:
    return {path.relative_to(site).as_posix(): Page(path.read_text()) for path in sorted(site.rglob("*.html"))}


def in_navigation() -> Iterator[str]:
    waiting = list(tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"])
    while waiting:
        for target in waiting.pop(0).values():
            if isinstance(target, list):
                waiting += target
            else:
                yield target


def test_every_page_is_in_the_navigation_once_and_in_the_site(pages: dict[str, Page]) -> None:
    named = list(in_navigation())
    docs = ROOT / "docs"
    assert sorted(named) == sorted(path.relative_to(docs).as_posix() for path in docs.rglob("*.md"))
    groups = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]
    assert len(groups) <= 7
    assert all(isinstance(pages, list) for group in groups for pages in group.values())
    assert {name.replace(".md", ".html") for name in named} == {*pages} - {"404.html"}
    linked = {posixpath.normpath(link) for link in pages["index.html"].links}
    assert [name for name in named if name.replace(".md", ".html") not in linked] == []


def test_every_link_and_anchor_inside_resolves(site: Path, pages: dict[str, Page]) -> None:
    broken, followed = [], 0
    for name, page in pages.items():
        if name == "404.html":  # shown at any address, so that its links are from the root
            continue
        for link in page.links:
            if is_outside(link) or link.startswith("mailto:"):
                continue
            path, anchor = urldefrag(unquote(link))
            target = (site / name).parent / path if path else site / name
            target = (target / "index.html" if target.is_dir() else target).resolve()
            followed += 1
            if not target.is_file() or not target.is_relative_to(site.resolve()):
                broken.append(f"{name} -> {link}: no such page")
            elif anchor and anchor not in pages[target.relative_to(site.resolve()).as_posix()].anchors:
                broken.append(f"{name} -> {link}: no such heading")
    assert broken == []
    assert followed > 200


def test_every_heading_that_the_readme_leads_to_is_there(pages: dict[str, Page]) -> None:
    links = re.findall(r"\]\(docs/([\w-]+)\.md#([\w-]+)\)", (ROOT / "README.md").read_text())
    assert links
    assert [(page, heading) for page, heading in links if heading not in pages[f"{page}.html"].anchors] == []


def test_nothing_is_loaded_from_elsewhere(site: Path, pages: dict[str, Page]) -> None:
    for name, page in pages.items():
        # A canonical address would be a link of its own kind; there is none, because the site has no address yet.
        assert [address for address in page.loads if is_outside(address)] == [], name
        assert page.loads, name
        assert not page.classes & LOADING, f"{name}: the theme's script loads a library from elsewhere for it"
    for path in site.rglob("*.css"):
        assert [address for address in outside_of_styles(path.read_text()) if is_outside(address)] == [], path.name
    for path in site.rglob("*.html"):
        for style in re.findall(r"<style[^>]*>(.*?)</style>", path.read_text(), re.DOTALL):
            assert [address for address in outside_of_styles(style) if is_outside(address)] == [], path.name


def test_everything_that_is_loaded_is_there(site: Path, pages: dict[str, Page]) -> None:
    for name, page in pages.items():
        for address in page.loads:
            if name != "404.html" and not address.startswith(("data:", "#")):
                path = urldefrag(address).url.partition("?")[0]
                assert ((site / name).parent / path).exists(), f"{name} loads {address}"


def test_pages_have_one_title_and_no_gap_between_headings(pages: dict[str, Page]) -> None:
    for name, page in pages.items():
        if name == "404.html":
            continue
        levels = [int(tag[1]) for tag in page.headings]
        assert levels.count(1) == 1, name
        assert all(below <= above + 1 for above, below in itertools.pairwise(levels)), name
        assert page.language == "en"
        assert page.images_without_text == 0


def test_tables_and_blocks_are_what_they_are_in_the_pages(site: Path) -> None:
    """A table that the site's Markdown does not take for one stays a paragraph of bars."""
    for path in (ROOT / "docs").rglob("*.md"):
        text, html = path.read_text(), (site / path.relative_to(ROOT / "docs")).with_suffix(".html").read_text()
        prose = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
        assert html.count("<table>") == len(re.findall(r"^\|(?:\s*:?-+:?\s*\|)+$", prose, re.MULTILINE)), path.name
        assert "```" not in re.sub(r"<pre.*?</pre>", "", html, flags=re.DOTALL), path.name
        assert "<p>|" not in html, path.name


def test_generators_of_pages_are_not_part_of_the_site(site: Path) -> None:
    assert list(site.rglob("*.py")) == []
