// Tables that are sorted by their headings and searched; a row stands for a node or a call and can be selected.

const MOST_ROWS = 600;

// columns: { title, value(row), cell(row)?, text(row)?, number?, minor? }
function dataTable({ name, columns, rows, key, act, isChosen, filters = [], sort = null }) {
  const body = el('tbody', {});
  const status = el('span', { class: 'status', role: 'status' });
  const search = el('input', { type: 'search', placeholder: `Search ${count(rows.length, name.replace(/s$/, ''), name)}`,
    'aria-label': `Search ${name}`, autocomplete: 'off', spellcheck: 'false' });
  const state = { column: sort ? sort.column : null, down: sort ? sort.down : false, filter: 0, all: false };
  const texts = new Map(rows.map((row) => [row, columns.map((column) => (
    column.text ? column.text(row) : String(column.value(row) ?? ''))).join(' ').toLowerCase()]));
  const heads = columns.map((column, i) => el('th', { scope: 'col', class: `${column.number ? 'n' : ''} ${column.minor ? 'minor' : ''}`.trim() },
    el('button', { type: 'button', onclick: () => {
      const again = state.column === i;
      state.down = again ? !state.down : Boolean(column.number);
      state.column = i;
      render();
    } }, column.title, el('span', { class: 'arrow', 'aria-hidden': 'true' }))));
  const made = new Map();

  function rowOf(row) {
    if (made.has(row)) return made.get(row);
    const cells = columns.map((column) => {
      const content = column.cell ? column.cell(row) : String(column.value(row) ?? '');
      return el('td', { class: `${column.number ? 'n' : ''} ${column.minor ? 'minor' : ''}`.trim() },
        ...(Array.isArray(content) ? content : [content]));
    });
    const line = el('tr', { 'data-row': key(row), tabindex: act ? '0' : null }, cells);
    if (act) alive(line, null, () => { if (!String(getSelection())) act(row); }); // marking text is no click
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
    heads.forEach((head, i) => head.setAttribute('aria-sort', state.column !== i ? 'none' : state.down ? 'descending' : 'ascending'));
    const shown = state.all ? found : found.slice(0, MOST_ROWS);
    body.replaceChildren(...shown.map(rowOf));
    if (!found.length) body.append(el('tr', {}, el('td', { class: 'empty', colspan: columns.length, text: 'Nothing matches.' })));
    if (shown.length < found.length) {
      body.append(el('tr', {}, el('td', { colspan: columns.length }, el('button', { type: 'button', class: 'link',
        text: `Show all ${integer(found.length)}`, onclick: () => { state.all = true; render(); } }))));
    }
    status.textContent = found.length === rows.length ? '' : `${integer(found.length)} of ${integer(rows.length)}`;
    mark();
  }
  function mark(origin) {
    let first = null;
    for (const [row, line] of made) {
      const chosen = Boolean(isChosen && isChosen(row));
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
  const choice = el('div', { class: 'tabs', role: 'group', 'aria-label': 'Show' }, filters.map((filter, i) => el(
    'button', { type: 'button', 'aria-pressed': String(i === 0), text: filter.title, onclick: (event) => {
      state.filter = i;
      for (const button of choice.children) button.setAttribute('aria-pressed', String(button === event.currentTarget));
      render();
    } })));
  const scroller = el('div', { class: 'scroller', tabindex: '0', role: 'region', 'aria-label': `Table of ${name}` },
    el('table', { id: `table-${name}` }, el('thead', {}, el('tr', {}, heads)), body));
  follow(mark);
  render();
  return el('div', { class: 'table' }, el('div', { class: 'bar' }, search, filters.length ? choice : null, status), scroller);
}

function compare(a, b) {
  if (a === b) return 0;
  if (a === null || a === undefined || a === '') return -1;
  if (b === null || b === undefined || b === '') return 1;
  return typeof a === 'number' && typeof b === 'number' ? a - b : String(a).localeCompare(String(b), 'en', { numeric: true });
}

function meter(part, name) {
  const bar = el('span', { class: `meter ${name}`, 'aria-hidden': 'true' }, sized(el('span', {}), 'width', `${Math.max(0, Math.min(1, part)) * 100}%`));
  return bar;
}

// -- operators ----------------------------------------------------------------------------------------------

function drawOperators() {
  const home = section('operators');
  const rows = NODES.filter((node) => node.where !== 'io');
  if (!rows.length) {
    home.append(el('p', { class: 'empty', text: 'Nothing is known of the operators of this program.' }));
    return;
  }
  const most = Math.max(1, ...rows.map((node) => node.cycles || 0));
  const columns = [
    { title: 'operator', value: (node) => shortOp(node.op), text: (node) => `${node.op} ${node.name}`,
      cell: (node) => [el('span', { text: shortOp(node.op) }), el('code', { class: 'sub', text: node.name })] },
    { title: 'runs on', value: placeName, cell: (node) => el('span', { class: 'badge' },
      el('span', { class: `swatch ${placeClass(node)}`, 'aria-hidden': 'true' }), placeName(node)) },
    { title: 'result', value: shape, cell: (node) => el('span', { class: 'badge', text: shape(node) }), minor: true },
    { title: 'MACs', number: true, value: (node) => node.macs || 0, cell: (node) => (node.macs ? integer(node.macs) : ''), minor: true },
    { title: 'cycles', number: true, value: (node) => node.cycles || 0, cell: (node) => (node.cycles ? integer(node.cycles) : '') },
    { title: 'share', number: true, value: (node) => node.cycles || 0, text: () => '',
      cell: (node) => (node.cycles ? [meter(node.cycles / most, placeClass(node)), el('span', { class: 'part', text: percent(node.cycles / TOTAL) })] : '') },
  ];
  if (rows.some((node) => node.reason)) {
    columns.splice(2, 0, { title: 'why on the CPU', value: (node) => (node.reason ? `${node.reason.code} ${node.reason.reason}` : ''),
      text: (node) => (node.reason ? `${node.reason.code} ${node.reason.reason} ${node.reason.hint}` : ''),
      cell: (node) => (node.reason ? [el('code', { text: node.reason.code }), ` ${node.reason.reason}`,
        node.reason.hint ? el('span', { class: 'sub', text: node.reason.hint }) : null] : '') });
  }
  const on = (where) => rows.filter((node) => node.where === where).length;
  const filters = on('cpu') && on('npu') ? [
    { title: 'all', test: () => true },
    { title: `NPU ${integer(on('npu'))}`, test: (node) => node.where === 'npu' },
    { title: `CPU ${integer(on('cpu'))}`, test: (node) => node.where === 'cpu' },
  ] : [];
  home.append(dataTable({ name: 'operators', columns, rows, key: (node) => node.id, filters,
    act: (node) => toggle('node', node.id, 'operators'), isChosen: (node) => selection.nodes.has(node.id) }));
}

// -- errors -------------------------------------------------------------------------------------------------

function drawErrors() {
  const home = section('errors');
  if (!ERRORS.length) {
    home.querySelector('.lede').hidden = true;
    home.append(el('p', { class: 'empty', text: 'No errors were measured for this report: they need the model and sample inputs, not only a compiled program.' }));
    return;
  }
  const order = new Map(NODES.map((node, i) => [node.id, i]));
  const inOrder = [...ERRORS].sort((a, b) => (order.get(a.node) ?? 1e9) - (order.get(b.node) ?? 1e9));
  const frame = el('div', { class: 'viewport bars' });
  const chosen = (row) => selection.nodes.has(row.node);
  const act = (origin) => (row) => { if (NODE.has(row.node)) toggle('node', row.node, origin); };
  const columns = [
    { title: 'layer', value: (row) => row.name, text: (row) => `${row.name} ${row.op}`,
      cell: (row) => [el('span', { text: shortOp(row.op) }), el('code', { class: 'sub', text: row.name })] },
    { title: 'SQNR', number: true, value: (row) => row.sqnr_db ?? Infinity, cell: (row) => decibels(row.sqnr_db) },
    { title: 'largest error', number: true, value: (row) => row.max_abs, cell: (row) => significant(row.max_abs) },
    { title: 'cosine', number: true, value: (row) => row.cosine, cell: (row) => (typeof row.cosine === 'number' ? decimals(row.cosine, 5) : ''), minor: true },
    { title: 'suggestion', value: (row) => row.suggestion || '' },
  ];
  home.append(el('div', { class: 'figure' }, frame), dataTable({ name: 'layers', columns, rows: ERRORS, key: (row) => row.node,
    act: act('layers'), isChosen: chosen, sort: { column: 1, down: false } }));
  const render = () => {
    if (frame.clientWidth) frame.replaceChildren(errorChart(inOrder, frame.clientWidth, chosen, act('errors')));
  };
  follow(render);
  new ResizeObserver(render).observe(frame);
  roving(frame, () => [...frame.querySelectorAll('[data-key]')], (key, at, all) => ({
    ArrowRight: Math.min(all.length - 1, at + 1), ArrowLeft: Math.max(0, at - 1) }[key]));
}

const decibels = (value) => (typeof value === 'number' ? `${decimals(value, 1)} dB` : 'exact');
const significant = (value) => (typeof value === 'number' ? String(Number(value.toPrecision(3))) : '');

function errorChart(rows, width, chosen, act) {
  const height = 190;
  const [top, bottom, left] = [16, 22, 46];
  const most = Math.max(10, ...rows.map((row) => row.sqnr_db ?? 0)) * 1.05;
  const y = (value) => height - bottom - (value / most) * (height - top - bottom);
  const step = (width - left - 8) / rows.length;
  const view = svg('svg', { class: 'canvas', width, height, role: 'group', 'aria-label': `Signal to noise of ${count(rows.length, 'layer')}` });
  for (const value of ticks(0, most, 4).values) {
    view.append(svg('line', { class: 'grid', x1: left, x2: width - 8, y1: y(value), y2: y(value) }),
      svg('text', { class: 'tick', x: left - 6, y: y(value) + 4, 'text-anchor': 'end', text: `${integer(value)} dB` }));
  }
  const any = rows.some(chosen);
  rows.forEach((row, i) => {
    const value = row.sqnr_db ?? most;
    const wide = Math.max(1, Math.min(step - (step > 4 ? 2 : 0.5), 40));
    const bar = mark(`${row.suggestion ? 'error-marked' : 'error'}${chosen(row) ? ' selected' : any ? ' faded' : ''}`,
      { x: left + i * step + (step - wide) / 2, y: y(value), width: wide, height: Math.max(1, height - bottom - y(value)) },
      row.node, `${row.name}, ${decibels(row.sqnr_db)}`, () => [
        el('strong', { text: shortOp(row.op) }), el('code', { class: 'sub', text: row.name }),
        fact('SQNR', decibels(row.sqnr_db)), fact('largest error', significant(row.max_abs)),
        row.suggestion ? el('p', { class: 'hint', text: row.suggestion }) : null].filter(Boolean), () => act(row));
    if (!i) bar.setAttribute('tabindex', '0');
    view.append(bar);
  });
  view.append(svg('text', { class: 'tick', x: left, y: height - 6, text: 'layers, in the order of the network' }));
  return view;
}
