// The error of every layer: bars in the order of the network, and a table with the worst first.

function drawErrors() {
  const home = section('errors');
  home.append(...quantizing(SUMMARY.accuracy));
  if (!ERRORS.length) {
    home.querySelector('.lede').hidden = true;
    home.append(
      el('p', {
        class: 'empty',
        text: 'No errors were measured for this report: they need the model and sample inputs, not only a compiled program.',
      }),
    );
    return;
  }
  const order = new Map(NODES.map((node, i) => [node.id, i]));
  const inOrder = [...ERRORS].sort((a, b) => (order.get(a.node) ?? 1e9) - (order.get(b.node) ?? 1e9));
  const frame = el('div', { class: 'viewport bars' });
  const chosen = (row) => selection.nodes.has(row.node);
  const act = (origin) => (row) => {
    if (NODE.has(row.node)) toggle('node', row.node, origin);
  };
  const suggested = ERRORS.some((row) => row.suggestion);
  const columns = [
    {
      title: 'layer',
      value: (row) => row.name,
      text: (row) => `${row.name} ${row.op}`,
      cell: (row) => [el('span', { text: shortOp(row.op) }), el('code', { class: 'sub', text: row.name })],
    },
    {
      title: 'SQNR',
      number: true,
      value: (row) => row.sqnr_db ?? Infinity,
      cell: (row) => decibels(row.sqnr_db),
    },
    ...(ERRORS.some((row) => 'own_sqnr_db' in row)
      ? [
          {
            title: 'its own',
            number: true,
            value: (row) => row.own_sqnr_db ?? Infinity,
            cell: (row) => ('own_sqnr_db' in row ? decibels(row.own_sqnr_db) : ''),
          },
        ]
      : []),
    {
      title: 'largest error',
      number: true,
      value: (row) => row.max_abs,
      cell: (row) => significant(row.max_abs),
    },
    {
      title: 'cosine',
      number: true,
      value: (row) => row.cosine,
      cell: (row) => (typeof row.cosine === 'number' ? decimals(row.cosine, 5) : ''),
      minor: true,
    },
    ...(suggested ? [{ title: 'suggestion', value: (row) => row.suggestion || '' }] : []),
  ];
  const explanation = suggested
    ? legend([
        ['error', 'a layer'],
        ['error-marked', 'a layer with a suggestion'],
      ])
    : null;
  home.append(
    figure(frame, explanation, []),
    dataTable({
      name: 'layers',
      columns,
      rows: ERRORS,
      key: (row) => row.name,
      act: act('layers'),
      isChosen: chosen,
      sort: { column: 1, down: false },
    }),
  );
  const render = () => {
    if (frame.clientWidth)
      frame.replaceChildren(errorChart(inOrder, frame.clientWidth, chosen, act('errors')));
  };
  follow(render);
  new ResizeObserver(render).observe(frame);
  rovingMarks(frame);
}

const decibels = (value) => (typeof value === 'number' ? `${decimals(value, 1)} dB` : 'no error');
const significant = (value) => (typeof value === 'number' ? String(Number(value.toPrecision(3))) : '');

function errorChart(rows, width, chosen, act) {
  const height = 190;
  const [top, bottom, left] = [16, 22, 46];
  const most = Math.max(10, ...rows.map((row) => row.sqnr_db ?? 0)) * 1.05;
  const y = (value) => height - bottom - (value / most) * (height - top - bottom);
  const step = (width - left - 8) / rows.length;
  const view = svg('svg', {
    class: 'canvas',
    width,
    height,
    role: 'group',
    'aria-label': `Signal to noise of ${count(rows.length, 'layer')}`,
  });
  for (const value of ticks(0, most, 4).values) {
    view.append(
      svg('line', { class: 'grid', x1: left, x2: width - 8, y1: y(value), y2: y(value) }),
      svg('text', {
        class: 'tick',
        x: left - 6,
        y: y(value) + 4,
        'text-anchor': 'end',
        text: `${integer(value)} dB`,
      }),
    );
  }
  const any = rows.some(chosen);
  rows.forEach((row, i) => {
    const value = row.sqnr_db ?? most;
    const wide = Math.max(1, Math.min(step - (step > 4 ? 2 : 0.5), 40));
    const bar = mark(
      `${row.suggestion ? 'error-marked' : 'error'}${chosen(row) ? ' selected' : any ? ' faded' : ''}`,
      {
        x: left + i * step + (step - wide) / 2,
        y: y(value),
        width: wide,
        height: Math.max(1, height - bottom - y(value)),
      },
      row.name,
      `${row.name}, ${decibels(row.sqnr_db)}`,
      () =>
        [
          el('strong', { text: shortOp(row.op) }),
          el('code', { class: 'sub', text: row.name }),
          fact('SQNR', decibels(row.sqnr_db)),
          'own_sqnr_db' in row ? fact('its own', decibels(row.own_sqnr_db)) : null,
          fact('largest error', significant(row.max_abs)),
          row.suggestion ? el('p', { class: 'hint', text: row.suggestion }) : null,
        ].filter(Boolean),
      () => act(row),
    );
    if (!i) bar.setAttribute('tabindex', '0');
    view.append(bar);
  });
  view.append(
    svg('text', { class: 'tick', x: left, y: height - 6, text: 'layers, in the order of the network' }),
  );
  return view;
}

// What was done when quantizing, in order, and what each method did to the outputs.
function quantizing(accuracy) {
  if (!accuracy) return [];
  const agreed =
    typeof accuracy.agreement === 'number' ? `, the same class for ${percent(accuracy.agreement)}` : '';
  const parts = [
    el('h3', { text: `Quantizing (${accuracy.plan})` }),
    el('p', {
      text: `The outputs are ${decibels(accuracy.output_sqnr_db)} from float${agreed}, on ${count(accuracy.samples, 'sample')} kept back from calibration.`,
    }),
  ];
  if (accuracy.warning) parts.push(el('p', { class: 'bad', text: sentence(accuracy.warning) }));
  const kept = accuracy.kept_float;
  if (kept?.layers.length) {
    const why = kept.asked ? '' : ' An output was below 20 dB without; --keep-float-budget 0 forbids it.';
    const more = kept.cycles_after / Math.max(1, kept.cycles_before) - 1;
    const gain = `${decibels(kept.before_db)} became ${decibels(kept.after_db)}`;
    parts.push(
      el('p', {
        text: `Kept float: ${kept.layers.join(', ')}. ${gain} for ${percent(more)} more cycles.${why}`,
      }),
    );
  }
  const head = ['method', 'before', 'after', 'what it did'];
  if ((accuracy.methods || []).length)
    parts.push(
      el(
        'table',
        { class: 'methods' },
        el(
          'thead',
          {},
          el(
            'tr',
            {},
            head.map((text) => el('th', { scope: 'col', text })),
          ),
        ),
        el(
          'tbody',
          {},
          accuracy.methods.map((row) =>
            el(
              'tr',
              {},
              el('td', { text: row.method }),
              el('td', { class: 'n', text: decibels(row.before_db) }),
              el('td', { class: 'n', text: decibels(row.after_db) }),
              el('td', { text: row.kept ? row.text : `${row.text} (not kept)` }),
            ),
          ),
        ),
      ),
    );
  return parts;
}
