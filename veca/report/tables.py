"""Rows of HTML → a table."""


def html_table(rows: list[list[str]]) -> str:
    """A table whose first row is its header; the cells are HTML already."""
    header, *body = rows
    head = "".join(f'<th scope="col">{cell}</th>' for cell in header)
    lines = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in body)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>'
