// The page of a search: a scatter of two figures, parallel coordinates, and the trials. Names reach the page as text.

const DATA = JSON.parse(document.getElementById('data').textContent);
const DONE = 'done';
const TRIALS = DATA.trials;
const FIGURES = [...new Set(TRIALS.flatMap((trial) => Object.keys(trial.figures)))].sort();
const OBJECTIVES = Object.keys(DATA.objectives);
const shown = (name) => name.replace(/^(parameters|options)\./, '');
const value = (trial, name) => (name in trial.figures ? trial.figures[name] : null);

function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, item] of Object.entries(attributes)) {
    if (key === 'text') node.textContent = item;
    else if (key.startsWith('on')) node.addEventListener(key.slice(2), item);
    else if (item !== null) node.setAttribute(key, item);
  }
  node.append(...children.flat());
  return node;
}

function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [key, item] of Object.entries(attributes)) {
    if (key === 'text') node.textContent = item;
    else if (key.startsWith('on')) node.addEventListener(key.slice(2), item);
    else node.setAttribute(key, item);
  }
  node.append(...children.flat());
  return node;
}

function number(item, name = '') {
  if (item === null || item === undefined) return '';
  if (typeof item !== 'number') return String(item);
  if (/bytes$/.test(name))
    return item < 1024
      ? `${item} B`
      : `${(item / 1024).toLocaleString('en-US', { maximumFractionDigits: 1 })} KiB`;
  if (/^(accuracy|accuracy_float|agreement)$/.test(name)) return `${(100 * item).toFixed(2)} %`;
  return item.toLocaleString('en-US', { maximumFractionDigits: Math.abs(item) < 10 ? 4 : 1 });
}

// -- one trial is marked everywhere ---------------------------------------------------------------------------

let marked = null;
const told = [];
function mark(trial) {
  marked = trial;
  for (const node of document.querySelectorAll('[data-trial]'))
    node.classList.toggle('marked', trial !== null && node.dataset.trial === String(trial.number));
  for (const place of told) place.replaceChildren(...(trial ? tell(trial) : []));
}
function tell(trial) {
  const made = DATA.dimensions.map((name) => `${shown(name)} ${trial.point[name]}`).join(', ');
  const came = OBJECTIVES.map((name) => `${name} ${number(value(trial, name), name)}`).join(', ');
  const parts = [
    el('strong', { text: `Trial ${trial.number}: ` }),
    `${made}. `,
    trial.state === DONE ? `${came}. ` : '',
  ];
  if (trial.reason)
    parts.push(el('span', { class: 'bad', text: `${trial.state}: ${trial.code} ${trial.reason}. ` }));
  if (trial.report) parts.push(el('a', { href: trial.report, text: 'report' }), ' ');
  return [...parts, el('code', { class: 'sub', text: trial.command })];
}
const watch = (trial) => ({
  'data-trial': trial.number,
  tabindex: 0,
  role: 'button',
  'aria-label': `trial ${trial.number}`,
  onmouseenter: () => mark(trial),
  onfocus: () => mark(trial),
  onclick: () => mark(trial),
});

// -- summary --------------------------------------------------------------------------------------------------

function summary() {
  const count = (state) => TRIALS.filter((trial) => trial.state === state).length;
  const parts = [`${TRIALS.length} trials${DATA.grid ? ', every point of the space' : ''}`];
  parts.push(`${count(DONE)} measured`, `${count('over a limit')} over a limit`, `${count('failed')} failed`);
  document.getElementById('lede').textContent = `${parts.join(', ')}. Objectives: ${Object.entries(
    DATA.objectives,
  )
    .map(([name, aim]) => `${name} (${aim})`)
    .join(', ')}.`;
  const place = document.getElementById('best');
  for (const [name, aim] of Object.entries(DATA.objectives)) {
    const front = TRIALS.filter((trial) => trial.front);
    if (!front.length) continue;
    const best = front.reduce((a, b) =>
      (aim === 'max' ? value(a, name) >= value(b, name) : value(a, name) <= value(b, name)) ? a : b,
    );
    place.append(
      el(
        'div',
        { class: 'winner' },
        el('span', { class: 'sub', text: `${aim === 'max' ? 'Most' : 'Least'} ${name}` }),
        tell(best),
      ),
    );
  }
  if (!DATA.front.length) place.append(el('p', { class: 'empty', text: 'No trial kept every limit.' }));
}

// -- scatter --------------------------------------------------------------------------------------------------

const W = 1000,
  H = 460,
  LEFT = 86,
  RIGHT = 24,
  TOP = 22,
  BOTTOM = 52;
function scale(values, low, high) {
  let [a, b] = [Math.min(...values), Math.max(...values)];
  if (a === b) [a, b] = [a - Math.abs(a || 1) * 0.05, b + Math.abs(b || 1) * 0.05];
  const pad = (b - a) * 0.06;
  [a, b] = [a - pad, b + pad];
  return { at: (v) => low + ((v - a) / (b - a)) * (high - low), a, b };
}
function ticks({ a, b }, count, name) {
  if (/bytes$/.test(name) && b > 4096) return ticks({ a: a / 1024, b: b / 1024 }, count).map((v) => v * 1024);
  const step = 10 ** Math.floor(Math.log10((b - a) / count));
  const size = [1, 2, 5, 10].map((k) => k * step).find((s) => (b - a) / s <= count) || step * 10;
  const found = [];
  for (let v = Math.ceil(a / size) * size; v <= b; v += size) found.push(Number(v.toPrecision(12)));
  return found;
}
function scatter() {
  const section = document.getElementById('scatter');
  const chart = svg('svg', {
    class: 'chart',
    viewBox: `0 0 ${W} ${H}`,
    role: 'img',
    'aria-label': 'Scatter of two figures',
  });
  const pick = (name, start) => {
    const select = el(
      'select',
      { onchange: draw, id: `pick-${name}` },
      FIGURES.map((figure) => el('option', { value: figure, text: figure })),
    );
    select.value = start;
    return select;
  };
  const across = pick('x', OBJECTIVES[1] || FIGURES.find((name) => name === 'cycles') || FIGURES[0]);
  const up = pick('y', OBJECTIVES[0]);
  const note = el('p', { class: 'told', 'aria-live': 'polite' });
  told.push(note);
  section.append(
    el('div', { class: 'picks' }, el('label', { text: 'Across' }, across), el('label', { text: 'Up' }, up)),
    el('div', { class: 'wide' }, chart),
    note,
  );

  function draw() {
    const [nx, ny] = [across.value, up.value];
    const rows = TRIALS.filter((trial) => value(trial, nx) !== null && value(trial, ny) !== null);
    chart.replaceChildren();
    if (!rows.length)
      return chart.append(
        svg('text', { x: W / 2, y: H / 2, 'text-anchor': 'middle', text: 'No trial has both figures.' }),
      );
    const limits = DATA.limits.filter((limit) => limit.figure === nx || limit.figure === ny);
    const reach = (name) => [
      ...rows.map((trial) => value(trial, name)),
      ...limits.filter((l) => l.figure === name).map((l) => l.value),
    ];
    const x = scale(reach(nx), LEFT, W - RIGHT),
      y = scale(reach(ny), H - BOTTOM, TOP);
    for (const t of ticks(x, 7, nx))
      chart.append(
        svg('line', { class: 'grid', x1: x.at(t), x2: x.at(t), y1: TOP, y2: H - BOTTOM }),
        svg('text', { x: x.at(t), y: H - BOTTOM + 18, 'text-anchor': 'middle', text: number(t, nx) }),
      );
    for (const t of ticks(y, 6, ny))
      chart.append(
        svg('line', { class: 'grid', x1: LEFT, x2: W - RIGHT, y1: y.at(t), y2: y.at(t) }),
        svg('text', { x: LEFT - 8, y: y.at(t) + 4, 'text-anchor': 'end', text: number(t, ny) }),
      );
    chart.append(
      svg('text', { x: (LEFT + W - RIGHT) / 2, y: H - 12, 'text-anchor': 'middle', text: nx }),
      svg('text', { x: 14, y: TOP - 7, text: ny }),
    );
    for (const limit of limits) {
      const text = `${limit.sign} ${number(limit.value, limit.figure)}`;
      if (limit.figure === nx)
        chart.append(
          svg('line', {
            class: 'limit',
            x1: x.at(limit.value),
            x2: x.at(limit.value),
            y1: TOP,
            y2: H - BOTTOM,
          }),
          svg('text', {
            class: 'limit-text',
            x: x.at(limit.value) - 5,
            y: TOP + 12,
            'text-anchor': 'end',
            text,
          }),
        );
      else
        chart.append(
          svg('line', {
            class: 'limit',
            x1: LEFT,
            x2: W - RIGHT,
            y1: y.at(limit.value),
            y2: y.at(limit.value),
          }),
          svg('text', {
            class: 'limit-text',
            x: W - RIGHT - 5,
            y: y.at(limit.value) - 5,
            'text-anchor': 'end',
            text,
          }),
        );
    }
    const front = rows.filter((trial) => trial.front).sort((a, b) => value(a, nx) - value(b, nx));
    const path = front
      .map((trial, i) => `${i ? 'L' : 'M'}${x.at(value(trial, nx))} ${y.at(value(trial, ny))}`)
      .join('');
    if (front.length > 1) chart.append(svg('path', { class: 'frontier', d: path }));
    for (const trial of [...rows].sort((a, b) => a.front - b.front))
      chart.append(
        svg('circle', {
          class: `dot${trial.front ? ' front' : ''}${trial.state === DONE ? '' : ' over'}`,
          cx: x.at(value(trial, nx)),
          cy: y.at(value(trial, ny)),
          r: trial.front ? 6 : 5,
          ...watch(trial),
        }),
      );
    mark(marked);
  }
  draw();
}

// -- parallel coordinates -------------------------------------------------------------------------------------

function parallel() {
  const section = document.getElementById('parallel');
  const rows = TRIALS.filter((trial) => trial.state === DONE);
  if (!rows.length) return section.append(el('p', { class: 'empty', text: 'Nothing was measured.' }));
  const axes = [
    ...DATA.dimensions.map((name) => ({ name, of: (t) => t.point[name] })),
    ...OBJECTIVES.map((name) => ({ name, of: (t) => value(t, name) })),
  ];
  const height = 340;
  const chart = svg('svg', {
    class: 'chart',
    viewBox: `0 0 ${W} ${height}`,
    role: 'img',
    'aria-label': 'Parallel coordinates',
  });
  axes.forEach((axis, i) => {
    axis.x = axes.length > 1 ? 70 + (i * (W - 160)) / (axes.length - 1) : W / 2;
    const values = rows.map(axis.of);
    if (values.every((v) => typeof v === 'number')) {
      const { at, a, b } = scale(values, height - 40, 50);
      axis.y = (v) => at(v);
      axis.marks =
        axis.name in DATA.objectives || new Set(values).size > 6
          ? ticks({ a, b }, 5, axis.name)
          : [...new Set(values)];
    } else {
      const kinds = [...new Set(values.map(String))].sort();
      axis.y = (v) =>
        kinds.length > 1
          ? height - 52 - (kinds.indexOf(String(v)) * (height - 114)) / (kinds.length - 1)
          : height / 2;
      axis.marks = kinds;
    }
    chart.append(
      svg('line', { class: 'axis', x1: axis.x, x2: axis.x, y1: 44, y2: height - 34 }),
      svg('text', { x: axis.x, y: 26, 'text-anchor': 'middle', text: shown(axis.name) }),
    );
    for (const m of axis.marks)
      chart.append(svg('text', { x: axis.x + 6, y: axis.y(m) + 4, text: number(m, axis.name) }));
  });
  for (const trial of [...rows].sort((a, b) => a.front - b.front)) {
    const path = axes.map((axis, i) => `${i ? 'L' : 'M'}${axis.x} ${axis.y(axis.of(trial))}`).join('');
    chart.append(svg('path', { class: `thread${trial.front ? ' front' : ''}`, d: path, ...watch(trial) }));
  }
  const note = el('p', { class: 'told', 'aria-live': 'polite' });
  told.push(note);
  section.append(el('div', { class: 'wide' }, chart), note);
}

// -- table ----------------------------------------------------------------------------------------------------

function table() {
  const section = document.getElementById('trials');
  const objectives = [...new Set([...OBJECTIVES, ...DATA.limits.map((limit) => limit.figure)])];
  const columns = [
    { name: 'trial', of: (t) => t.number },
    ...DATA.dimensions.map((name) => ({ name: shown(name), of: (t) => t.point[name] })),
    ...objectives.map((name) => ({ name, of: (t) => value(t, name) })),
    { name: 'seconds', of: (t) => t.seconds },
    { name: 'state', of: (t) => (t.front ? 'front' : t.state) },
  ];
  const body = el('tbody');
  let by = 0,
    up = true;
  const heads = columns.map((column, i) =>
    el('th', { scope: 'col' }, el('button', { type: 'button', text: column.name, onclick: () => sort(i) })),
  );
  function sort(i) {
    up = i === by ? !up : true;
    by = i;
    for (const [j, head] of heads.entries())
      head.setAttribute('aria-sort', j === by ? (up ? 'ascending' : 'descending') : 'none');
    draw();
  }
  function draw() {
    const of = columns[by].of;
    const less = (a, b) =>
      (a === null || a === undefined) - (b === null || b === undefined) ||
      (typeof a === 'number' && typeof b === 'number' ? a - b : String(a).localeCompare(String(b)));
    const rows = [...TRIALS].sort((a, b) => (up ? 1 : -1) * less(of(a), of(b)) || a.number - b.number);
    body.replaceChildren(
      ...rows.map((trial) =>
        el(
          'tr',
          { class: trial.front ? 'front' : '', 'data-trial': trial.number, onmouseenter: () => mark(trial) },
          columns.map((column) => {
            const item = column.of(trial);
            return el('td', { class: typeof item === 'number' ? 'n' : '', text: number(item, column.name) });
          }),
          el(
            'td',
            { class: 'reason' },
            trial.report ? el('a', { href: trial.report, text: 'report' }) : '',
            trial.reason ? ` ${trial.code} ${trial.reason}` : '',
          ),
        ),
      ),
    );
    mark(marked);
  }
  section.append(
    el(
      'div',
      { class: 'scroll' },
      el('table', { class: 'rows' }, el('thead', {}, el('tr', {}, heads, el('th', { text: '' }))), body),
    ),
  );
  draw();
}

const root = document.documentElement;
document.getElementById('theme').addEventListener('click', () => {
  const dark = root.dataset.theme
    ? root.dataset.theme === 'dark'
    : matchMedia('(prefers-color-scheme: dark)').matches;
  root.dataset.theme = dark ? 'light' : 'dark';
});
summary();
if (FIGURES.length) scatter();
else document.getElementById('scatter').append(el('p', { class: 'empty', text: 'Nothing was measured.' }));
parallel();
table();
root.dataset.ready = 'yes';
