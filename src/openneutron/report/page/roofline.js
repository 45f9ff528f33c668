// The roofline: what every kernel call reaches against what the arithmetic and the SRAM allow.

const PLOT = { left: 46, right: 14, top: 14, bottom: 42 };

function drawRoofline() {
  const home = section('roofline');
  const points = CALLS.filter(
    (call) => call.kind === 'kernel' && call.macs > 0 && call.bytes > 0 && call.cycles > 0,
  );
  if (!points.length || !ROOF.macs_per_cycle) {
    home.append(el('p', { class: 'empty', text: 'No kernel call multiplies, so there is no roofline.' }));
    return;
  }
  const frame = el('div', { class: 'viewport roof' });
  const silent = CALLS.filter((call) => call.kind === 'kernel').length - points.length;
  const bounds = Object.keys(BOUNDS).filter((bound) => points.some((call) => call.bound === bound));
  home.append(
    figure(frame, boundLegend(bounds), []),
    el('p', { class: 'note', text: roofSentence(points, silent) }),
  );
  const render = () => {
    const width = frame.clientWidth;
    if (width) frame.replaceChildren(roofChart(points, width, Math.min(420, Math.max(280, width * 0.5))));
  };
  follow(render);
  new ResizeObserver(render).observe(frame);
  rovingMarks(frame);
}

function roofSentence(points, silent) {
  const reached =
    points.reduce((sum, call) => sum + call.macs, 0) / points.reduce((sum, call) => sum + call.cycles, 0);
  const rest = silent
    ? ` ${count(silent, 'call')} without multiplications ${silent === 1 ? 'is' : 'are'} not shown.`
    : '';
  return `Together these calls reach ${decimals(reached, 1)} of ${integer(ROOF.macs_per_cycle)} multiply-accumulates a cycle, ${percent(
    reached / ROOF.macs_per_cycle,
  )} of the peak. A larger dot takes longer.${rest}`;
}

function roofChart(points, width, height) {
  const density = (call) => call.macs / call.bytes;
  const speed = (call) => call.macs / call.cycles;
  const peak = ROOF.macs_per_cycle;
  const xs = [...points.map(density), peak / ROOF.sram_bytes_per_cycle];
  const ys = [...points.map(speed), peak];
  const [x0, x1] = [
    Math.floor(Math.log10(Math.min(...xs)) - 0.1),
    Math.ceil(Math.log10(Math.max(...xs)) + 0.1),
  ];
  const [y0, y1] = [Math.floor(Math.log10(Math.min(...ys)) - 0.05), Math.log10(peak) + 0.25];
  const px = (value) => PLOT.left + ((Math.log10(value) - x0) / (x1 - x0)) * (width - PLOT.left - PLOT.right);
  const py = (value) =>
    height - PLOT.bottom - ((Math.log10(value) - y0) / (y1 - y0)) * (height - PLOT.top - PLOT.bottom);
  const view = svg('svg', {
    class: 'canvas',
    width,
    height,
    role: 'group',
    'aria-label': `Roofline of ${count(points.length, 'kernel call')}`,
  });
  const power = (n) => (n >= 0 ? integer(10 ** n) : String(Number((10 ** n).toPrecision(1))));
  for (let n = x0; n <= x1; n += 1) {
    view.append(
      svg('line', {
        class: 'grid',
        x1: px(10 ** n),
        x2: px(10 ** n),
        y1: PLOT.top,
        y2: height - PLOT.bottom,
      }),
      svg('text', {
        class: 'tick',
        x: px(10 ** n),
        y: height - PLOT.bottom + 16,
        'text-anchor': n === x1 ? 'end' : 'middle',
        text: power(n),
      }),
    );
  }
  for (let n = Math.ceil(y0); n <= y1; n += 1) {
    view.append(
      svg('line', { class: 'grid', x1: PLOT.left, x2: width - PLOT.right, y1: py(10 ** n), y2: py(10 ** n) }),
      svg('text', {
        class: 'tick',
        x: PLOT.left - 7,
        y: py(10 ** n) + 4,
        'text-anchor': 'end',
        text: power(n),
      }),
    );
  }
  view.append(
    svg('text', {
      class: 'axis',
      x: width - PLOT.right,
      y: height - 8,
      'text-anchor': 'end',
      text: 'multiply-accumulates per byte moved',
    }),
    svg('text', {
      class: 'axis',
      transform: `translate(12 ${PLOT.top}) rotate(-90)`,
      'text-anchor': 'end',
      text: 'multiply-accumulates per cycle',
    }),
    ...roofLines(px, py, x0, x1, y0, peak),
  );
  const longest = Math.max(...points.map((call) => call.cycles));
  [...points]
    .sort((a, b) => b.cycles - a.cycles)
    .forEach((call, i) => {
      const chosen = selection.calls.has(call.index);
      const dot = svg('circle', {
        class: `dot ${boundClass(call.bound)}${chosen ? ' selected' : ''}${selection.calls.size && !chosen ? ' faded' : ''}`,
        cx: px(density(call)),
        cy: py(speed(call)),
        r: 3.5 + 7 * Math.sqrt(call.cycles / longest),
        role: 'button',
        tabindex: i ? '-1' : '0',
        'data-key': `call-${call.index}`,
        'aria-label': `${callTitle(call)}, ${decimals(speed(call), 1)} of ${peak} per cycle, limited by ${boundName(call.bound)}`,
      });
      alive(
        dot,
        () => [
          ...callTip(call),
          fact(
            'reaches',
            `${decimals(speed(call), 1)} MACs a cycle, ${percent(speed(call) / peak)} of the peak`,
          ),
        ],
        () => selectCall(call, 'roofline'),
      );
      view.append(dot);
    });
  return view;
}

function roofLines(px, py, x0, x1, y0, peak) {
  const slope = (rate, name, text, above) => {
    if (!rate) return [];
    const start = Math.max(10 ** x0, 10 ** y0 / rate);
    const end = Math.min(10 ** x1, peak / rate);
    if (end <= start) return [];
    const at = start * (end / start) ** 0.5;
    const angle = (Math.atan2(py(end * rate) - py(start * rate), px(end) - px(start)) * 180) / Math.PI;
    return [
      svg('line', {
        class: `roof-line ${name}`,
        x1: px(start),
        y1: py(start * rate),
        x2: px(end),
        y2: py(end * rate),
      }),
      svg('text', {
        class: 'tick',
        transform: `translate(${px(at)} ${py(at * rate)}) rotate(${angle})`,
        y: above ? -6 : 14,
        text,
      }),
    ];
  };
  const knee = peak / ROOF.sram_bytes_per_cycle;
  return [
    ...slope(
      ROOF.sram_bytes_per_cycle,
      'bound-sram',
      `SRAM, ${Number(ROOF.sram_bytes_per_cycle.toPrecision(3))} B a cycle`,
      !(ROOF.flash_bytes_per_cycle > ROOF.sram_bytes_per_cycle),
    ),
    ...slope(
      ROOF.flash_bytes_per_cycle,
      'bound-flash',
      `flash, ${Number((ROOF.flash_bytes_per_cycle || 0).toPrecision(2))} B a cycle`,
      ROOF.flash_bytes_per_cycle > ROOF.sram_bytes_per_cycle,
    ),
    svg('line', {
      class: 'roof-line bound-mac',
      x1: px(Math.max(knee, 10 ** x0)),
      x2: px(10 ** x1),
      y1: py(peak),
      y2: py(peak),
    }),
    svg('text', {
      class: 'tick',
      x: px(10 ** x1) - 4,
      y: py(peak) - 6,
      'text-anchor': 'end',
      text: `peak, ${integer(peak)} a cycle`,
    }),
  ];
}
