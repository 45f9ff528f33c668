// Tables that are sorted by their headings and searched; a row stands for a node or a call and can be selected.

const MOST_ROWS = 600;

// columns: { title, value(row), cell(row)?, text(row)?, number?, minor? }
function dataTable({ name, columns, rows, key, act, isChosen, filters = [], sort = null }) {
  const body = el('tbody', {});
  const status = el('span', { class: 'status', role: 'status' });
  const search = el('input', {
    type: 'search',
    placeholder: `Search ${count(rows.length, name.replace(/s$/, ''), name)}`,
    'aria-label': `Search ${name}`,
    autocomplete: 'off',
    spellcheck: 'false',
  });
  const state = { column: sort ? sort.column : null, down: sort ? sort.down : false, filter: 0, all: false };
  const texts = new Map(
    rows.map((row) => [
      row,
      columns
        .map((column) => (column.text ? column.text(row) : String(column.value(row) ?? '')))
        .join(' ')
        .toLowerCase(),
    ]),
  );
  const heads = columns.map((column, i) =>
    el(
      'th',
      { scope: 'col', class: `${column.number ? 'n' : ''} ${column.minor ? 'minor' : ''}`.trim() },
      el(
        'button',
        {
          type: 'button',
          onclick: () => {
            const again = state.column === i;
            state.down = again ? !state.down : Boolean(column.number);
            state.column = i;
            render();
          },
        },
        column.title,
        el('span', { class: 'arrow', 'aria-hidden': 'true' }),
      ),
    ),
  );
  const made = new Map();

  function rowOf(row) {
    if (made.has(row)) return made.get(row);
    const cells = columns.map((column) => {
      const content = column.cell ? column.cell(row) : String(column.value(row) ?? '');
      return el(
        'td',
        { class: `${column.number ? 'n' : ''} ${column.minor ? 'minor' : ''}`.trim() },
        ...(Array.isArray(content) ? content : [content]),
      );
    });
    const line = el('tr', { 'data-row': key(row), tabindex: act ? '0' : null }, cells);
    if (act)
      alive(line, null, () => {
        if (!String(getSelection())) act(row);
      }); // marking text is no click
    made.set(row, line);
    return line;
  }
  function render() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let found = rows.filter((row) => words.every((word) => texts.get(row).includes(word)));
    if (filters.length) found = found.filter(filters[state.filter].test);
    if (state.column !== null) {
      const { value } = columns[state.column];
      const sign = state.down ? -1 : 1;
      found = [...found].sort((a, b) => sign * compare(value(a), value(b)));
    }
    for (const [i, head] of heads.entries())
      head.setAttribute('aria-sort', state.column !== i ? 'none' : state.down ? 'descending' : 'ascending');
    const shown = state.all ? found : found.slice(0, MOST_ROWS);
    body.replaceChildren(...shown.map(rowOf));
    if (!found.length)
      body.append(
        el('tr', {}, el('td', { class: 'empty', colspan: columns.length, text: 'Nothing matches.' })),
      );
    if (shown.length < found.length) {
      body.append(
        el(
          'tr',
          {},
          el(
            'td',
            { colspan: columns.length },
            el('button', {
              type: 'button',
              class: 'link',
              text: `Show all ${integer(found.length)}`,
              onclick: () => {
                state.all = true;
                render();
              },
            }),
          ),
        ),
      );
    }
    status.textContent =
      found.length === rows.length ? '' : `${integer(found.length)} of ${integer(rows.length)}`;
    mark();
  }
  function mark(origin) {
    let first = null;
    for (const [row, line] of made) {
      const chosen = Boolean(isChosen?.(row));
      line.classList.toggle('selected', chosen);
      if (isChosen) line.setAttribute('aria-selected', String(chosen));
      if (chosen && line.isConnected) first ||= line;
    }
    if (first && origin !== undefined && origin !== name) {
      // Only the table itself scrolls, never the page.
      scroller.scrollTop = Math.max(0, first.offsetTop - scroller.clientHeight / 3);
    }
  }
  search.addEventListener('input', render);
  const choice = el(
    'div',
    { class: 'tabs', role: 'group', 'aria-label': 'Show' },
    filters.map((filter, i) =>
      el('button', {
        type: 'button',
        'aria-pressed': String(i === 0),
        text: filter.title,
        onclick: (event) => {
          state.filter = i;
          for (const button of choice.children)
            button.setAttribute('aria-pressed', String(button === event.currentTarget));
          render();
        },
      }),
    ),
  );
  const scroller = el(
    'div',
    { class: 'scroller', tabindex: '0', role: 'region', 'aria-label': `Table of ${name}` },
    el('table', { id: `table-${name}` }, el('thead', {}, el('tr', {}, heads)), body),
  );
  follow(mark);
  render();
  return el(
    'div',
    { class: 'table' },
    el('div', { class: 'bar' }, search, filters.length ? choice : null, status),
    scroller,
  );
}

function compare(a, b) {
  if (a === b) return 0;
  if (a === null || a === undefined || a === '') return -1;
  if (b === null || b === undefined || b === '') return 1;
  return typeof a === 'number' && typeof b === 'number'
    ? a - b
    : String(a).localeCompare(String(b), 'en', { numeric: true });
}

function meter(part, name) {
  const bar = el(
    'span',
    { class: `meter ${name}`, 'aria-hidden': 'true' },
    sized(el('span', {}), 'width', `${Math.max(0, Math.min(1, part)) * 100}%`),
  );
  return bar;
}
