"""Additions to MkDocs for this documentation: pages from other folders of the repository, notebooks with their
output, and every page as Markdown, for readers that are programs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
ELSEWHERE = {"security.md": "SECURITY.md", "changelog.md": "CHANGELOG.md"}
"""Pages of the documentation by what they are in the repository's root."""

_HEADING = re.compile(r"\A# .*\n+")
_written: dict[str, str] = {}
"""Each page as Markdown, as far as the build has come."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie elsewhere, and the list of all pages."""
    for page, source in ELSEWHERE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    for path in sorted(Path(config.docs_dir).glob("*.ipynb")):
        content = "".join(_notebook(path))
        files.append(File.generated(config, f"{path.stem}.md", content=content))
    files.append(File.generated(config, "llms.txt", content="".join(_list_of_pages(files, config))))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links to files of the root, and to notebooks, become links to pages."""
    if not page.file.generated_by:
        markdown = re.sub(r"\]\(([\w-]+)\.ipynb\)", r"](\1.md)", markdown)
    for name, source in ELSEWHERE.items():
        markdown = markdown.replace(f"](../{source}", f"]({name}")
    _written[page.file.src_uri] = markdown
    return markdown


def on_post_build(config: MkDocsConfig) -> None:
    """Write each page as Markdown beside it."""
    for name, markdown in _written.items():
        Path(config.site_dir, name).write_text(markdown, encoding="utf-8")


def _notebook(path: Path) -> Iterator[str]:
    """A notebook as a page: each cell, and below it its output."""
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:  # noqa: TID251 - a file of this folder
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            yield f"{source}\n\n"
            continue
        yield f"```python\n{source}\n```\n\n"
        for out in cell["outputs"]:
            data = out.get("data", {})
            if "text/html" in data:
                yield f'<div class="output">{"".join(data["text/html"])}</div>\n\n'
            else:
                lines = out.get("text") or data.get("text/plain") or [f"{line}\n" for line in out["traceback"]]
                yield f"```text\n{''.join(lines).strip()}\n```\n\n"
    yield f"[This page as a notebook]({path.name})\n"


def _list_of_pages(files: Files, config: MkDocsConfig) -> Iterator[str]:
    yield f"# {config.site_name}\n\n> {config.site_description}\n\n## Pages\n\n"
    for entry in config.nav or ():
        for title, name in entry.items():
            found = files.get_file_from_path(name)
            assert found is not None, name
            text = _HEADING.sub("", found.content_string)
            first = re.split(r"(?<=[.])\s", " ".join(text.split("\n\n")[0].split()))[0]
            yield f"- [{title}]({name})" + (f": {first}\n" if not first.startswith("#") else "\n")
