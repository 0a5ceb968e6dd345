// Tables that a heading sorts: numbers from the greatest, words from the first letter, and the other way round next.

function makeSortable(table) {
  const heads = [...table.querySelectorAll("th")];
  const body = table.tBodies[0];
  heads.forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      const numeric = head.classList.contains("number");
      const before = head.getAttribute("aria-sort");
      const ascending = before === "none" ? !numeric : before === "descending";
      for (const one of heads) one.setAttribute("aria-sort", "none");
      head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
      body.append(...sortedRows([...body.rows], column, ascending));
    });
  });
}

function sortedRows(rows, column, ascending) {
  const keys = new Map(rows.map((row) => [row, keyOf(row.cells[column])]));
  return rows.sort((a, b) => {
    const [one, other] = [keys.get(a), keys.get(b)];
    if (one === null || other === null) return (one === null) - (other === null); // nothing comes last, either way
    return ascending ? order(one, other) : order(other, one);
  });
}

function order(one, other) {
  if (isNumber(one) && isNumber(other)) return one - other;
  return String(one).localeCompare(String(other), "en", { numeric: true });
}

function keyOf(cell) {
  if (cell.dataset.value !== undefined) return Number(cell.dataset.value);
  return ["", "–"].includes(cell.textContent) ? null : cell.textContent;
}
