"""Sheet: the content of a view, and its four forms: text, HTML, Markdown, and a value that displays itself."""
