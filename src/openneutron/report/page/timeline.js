// What happens when: one lane for the NPU, one for the CPU, one for copies from flash that run beside both.

const LANES = [
  { name: 'NPU', kinds: new Set(['kernel', 'wait']) },
  { name: 'CPU', kinds: new Set(['cpu', 'quantize', 'dequantize', 'transpose']) },
  { name: 'Copies', kinds: new Set(['copy']) },
];
const LANE = { height: 44, gap: 8, top: 12, axis: 26 };

function drawTimeline() {
  const home = section('timeline');
  if (!CALLS.length) {
    home.append(
      el('p', {
        class: 'empty',
        text: `The ${SUMMARY.converter || 'chosen'} converter tells nothing about its calls, so there is no timeline.`,
      }),
    );
    return;
  }
  const lanes = LANES.filter((lane) => CALLS.some((call) => lane.kinds.has(call.kind)));
  const end = CALLS.reduce((most, call) => Math.max(most, call.start + call.cycles), 1);
  const height = LANE.top + lanes.length * (LANE.height + LANE.gap) + LANE.axis;
  const bounds = Object.keys(BOUNDS).filter((bound) => CALLS.some((call) => call.bound === bound));
  const label = `Timeline of ${count(CALLS.length, 'step')}, ${time(end)} in all`;
  const top = (i) => LANE.top + i * (LANE.height + LANE.gap);
  const chart = strip({
    label,
    height,
    whole: end,
    least: end / 4000,
    explanation: boundLegend(bounds),
    draw: ({ width, from, to, scale }) => ({
      still: lanes.map((lane, i) =>
        svg('text', { class: 'lane', x: 10, y: top(i) + LANE.height / 2 + 4, text: lane.name }),
      ),
      moving: [
        ...timeAxis(width, height, from, to, scale),
        ...lanes.flatMap((lane, i) => laneMarks(lane, top(i), from, to, scale, width)),
      ],
    }),
  });
  home.append(
    chart.figure,
    el('p', {
      class: 'note',
      'data-total': end,
      text: `${count(CALLS.length, 'step')} in ${integer(end)} cycles, ${time(end)}${
        end === SUMMARY.cycles_estimated ? ': the estimate of the summary, step by step.' : '.'
      }`,
    }),
    callTable(),
  );
  follow((origin) => {
    const calls = [...selection.calls].map((index) => CALL.get(index)).filter(Boolean);
    if (!calls.length || origin === 'timeline') chart.later();
    else
      chart.reveal(
        Math.min(...calls.map((call) => call.start)),
        Math.max(...calls.map((call) => call.start + call.cycles)),
      );
  });
  chart.render();
}

function laneMarks(lane, y, from, to, scale, width) {
  const result = [];
  let drawn = -1; // the last pixel that is taken: thousands of calls are more than there are pixels
  for (const call of CALLS) {
    if (!lane.kinds.has(call.kind) || call.start > to || call.start + call.cycles < from) continue;
    const left = Math.max(-20, scale(call.start));
    const right = Math.min(width + 20, scale(call.start + call.cycles));
    const chosen = selection.calls.has(call.index);
    if (right - left < 0.5 && right < drawn + 0.5 && !chosen) continue;
    drawn = Math.max(drawn, right);
    const faded = selection.calls.size && !chosen;
    const name = `${boundClass(call.bound)} kind-${call.kind}${chosen ? ' selected' : ''}${faded ? ' faded' : ''}`;
    result.push(
      mark(
        name,
        { x: left, y, width: right - left, height: LANE.height },
        `call-${call.index}`,
        `${callTitle(call)}, ${time(call.cycles)}, limited by ${boundName(call.bound)}`,
        () => callTip(call),
        () => selectCall(call, 'timeline'),
        callTitle(call),
      ),
    );
  }
  return result;
}

function timeAxis(width, height, from, to, scale) {
  const unit = ROOF.frequency_hz ? toMs : (cycles) => cycles;
  const back = unit(1);
  const found = ticks(unit(from), unit(to), Math.max(3, width / 110));
  const digits = Math.max(0, Math.ceil(-Math.log10(found.step) - 1e-9));
  return found.values.flatMap((value) => {
    const x = scale(value / back);
    const end = x > width - 30;
    return [
      svg('line', { class: 'grid', x1: x, x2: x, y1: 4, y2: height - LANE.axis + 4 }),
      svg('text', {
        class: 'tick',
        x,
        y: height - 8,
        'text-anchor': x < 24 ? 'start' : end ? 'end' : 'middle',
        text: ROOF.frequency_hz ? `${decimals(value, digits)} ms` : integer(value),
      }),
    ];
  });
}

function callTable() {
  const columns = [
    { title: '#', number: true, value: (call) => call.index },
    {
      title: 'step',
      value: callTitle,
      cell: (call) => [
        el('span', { text: callTitle(call) }),
        el('code', {
          class: 'sub',
          text: call.nodes.map((id) => NODE.get(id)?.name || id).join(', ') || call.name,
        }),
      ],
      text: (call) => `${callTitle(call)} ${call.nodes.join(' ')} ${call.name}`,
    },
    { title: 'kernel', value: (call) => (call.kernel || call.kind).toLowerCase(), minor: true },
    {
      title: 'limited by',
      value: (call) => BOUND_SHORT[call.bound] || call.bound,
      cell: (call) => boundBadge(call.bound),
    },
    {
      title: 'start',
      number: true,
      value: (call) => call.start,
      cell: (call) => time(call.start),
      minor: true,
    },
    { title: 'cycles', number: true, value: (call) => call.cycles, cell: (call) => integer(call.cycles) },
    {
      title: 'MACs',
      number: true,
      value: (call) => call.macs,
      cell: (call) => (call.macs ? integer(call.macs) : ''),
      minor: true,
    },
    {
      title: 'moved',
      number: true,
      value: (call) => call.bytes,
      cell: (call) => (call.bytes ? bytes(call.bytes) : ''),
      minor: true,
    },
  ];
  return folded(`All ${count(CALLS.length, 'step')} as a table`, () => [
    dataTable({
      name: 'steps',
      columns,
      rows: CALLS,
      key: (call) => `call-${call.index}`,
      act: (call) => selectCall(call, 'steps'),
      isChosen: (call) => selection.calls.has(call.index),
    }),
  ]);
}

function boundLegend(bounds) {
  return legend(
    bounds.map((bound) => [
      `bound-${bound}`,
      `limited by ${bound === 'overhead' ? '' : 'the '}${boundName(bound)}`,
    ]),
  );
}

function boundBadge(bound) {
  return el(
    'span',
    { class: 'badge' },
    el('span', { class: `swatch ${boundClass(bound)}`, 'aria-hidden': 'true' }),
    BOUND_SHORT[bound] || bound,
  );
}
