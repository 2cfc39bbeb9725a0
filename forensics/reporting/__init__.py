"""The report of a run or an archive: gathered once, written as Markdown, JSON or a page."""
