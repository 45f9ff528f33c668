// Addresses over time: every buffer of the scratch area, from the call that fills it to the last that reads it.

const REGION = {
  scratch: { title: 'Scratch', height: 330 },
  prefetch: { title: 'Prefetched weights', height: 170 },
  state: { title: 'State, which survives between runs', height: 170 },
};
const ROOM = { top: 14, bottom: 28 };

function drawMemory() {
  const home = section('memory');
  const areas = MEMORY.filter((area) => area.buffers.length);
  if (!areas.length) {
    home.append(
      el('p', {
        class: 'empty',
        text: MEMORY.length
          ? 'The NPU needs no scratch memory for this program.'
          : 'Nothing is known of the memory inside the delegates.',
      }),
    );
    return;
  }
  const place = el('div', {});
  let shown = null;
  let charts = [];
  function show(area) {
    if (shown === area) return;
    shown = area;
    charts = Object.keys(REGION).flatMap((region) =>
      area.buffers.some((buffer) => buffer.region === region) ? [memoryChart(area, region)] : [],
    );
    place.replaceChildren(...charts.flatMap((chart) => chart.parts));
    for (const chart of charts) chart.strip.render();
    for (const button of tabs.children) button.setAttribute('aria-pressed', String(button.area === area));
  }
  const tabs = el(
    'div',
    { class: 'tabs', role: 'group', 'aria-label': 'Partition' },
    areas.length < 2
      ? []
      : areas.map((area) => {
          const button = el(
            'button',
            { type: 'button', onclick: () => show(area) },
            el('span', { class: `swatch place-${area.partition % PALETTE}`, 'aria-hidden': 'true' }),
            `partition ${area.partition}, ${bytes(area.scratch_bytes)}`,
          );
          button.area = area;
          return button;
        }),
  );
  home.append(tabs, place);
  show(areas.reduce((most, area) => (area.scratch_bytes > most.scratch_bytes ? area : most)));
  follow((origin) => {
    const chosen = BUFFERS.filter((buffer) => selection.buffers.has(buffer.key));
    const area = areas.find((candidate) => candidate.partition === chosen[0]?.partition);
    if (area) show(area);
    for (const chart of charts) {
      const mine = chosen.filter(
        (buffer) => buffer.partition === shown.partition && buffer.region === chart.region,
      );
      if (!mine.length || origin === 'memory') chart.strip.later();
      else
        chart.strip.reveal(Math.min(...mine.map((b) => b.first)), Math.max(...mine.map((b) => b.last + 1)));
    }
  });
}

function memoryChart(area, region) {
  const buffers = BUFFERS.filter((buffer) => buffer.partition === area.partition && buffer.region === region);
  const size = area[`${region}_bytes`] || 0;
  const highest = Math.max(...buffers.map((buffer) => buffer.offset + buffer.nbytes));
  const calls = NPU_CALLS.get(area.partition) || [];
  const steps = Math.max(calls.length, ...buffers.map((buffer) => buffer.last + 1));
  const { title, height } = REGION[region];
  const inner = height - ROOM.top - ROOM.bottom;
  const top = (address) => ROOM.top + inner * (1 - address / Math.max(size, highest, 1));
  const explanation = el('h3', { text: `${title}, ${exactBytes(size)}` });
  const label = `${title}: addresses over ${count(steps, 'call')}`;
  const chart = strip({
    label,
    explanation,
    height,
    whole: steps,
    least: Math.min(steps, 3),
    draw: ({ width, from, to, scale }) => ({
      still: addressAxis(width, size, top),
      moving: [
        ...callAxis(width, height, from, to, scale),
        ...buffers
          .filter((buffer) => buffer.first <= to && buffer.last + 1 >= from)
          .map((buffer) => {
            const chosen = selection.buffers.has(buffer.key);
            const x = scale(buffer.first);
            const tint = `place-${area.partition % PALETTE} tint-${buffers.indexOf(buffer) % 3}`;
            return mark(
              `${tint}${chosen ? ' selected' : ''}${selection.buffers.size && !chosen ? ' faded' : ''}`,
              {
                x,
                y: top(buffer.offset + buffer.nbytes),
                width: scale(buffer.last + 1) - x,
                height: inner * (buffer.nbytes / Math.max(size, highest, 1)),
              },
              buffer.key,
              `${buffer.name}, ${bytes(buffer.nbytes)} at ${integer(buffer.offset)}`,
              () => bufferTip(buffer, calls),
              () => {
                const call = writerOf(buffer);
                if (call) selectCall(call, 'memory');
              },
              shortName(buffer.name),
            );
          }),
      ],
    }),
  });
  return {
    strip: chart,
    region,
    parts: [
      chart.figure,
      el('p', {
        class: 'note',
        'data-highest': highest,
        text: `${peakSentence(buffers, calls, steps, size)} The highest address in use is ${integer(highest)} B, ${
          highest === size ? 'which is the size of the area.' : `of ${integer(size)} B.`
        }`,
      }),
    ],
  };
}

function peakSentence(buffers, calls, steps, size) {
  let peak = { step: 0, live: 0 };
  for (let step = 0; step < steps; step += 1) {
    const live = buffers.reduce((sum, b) => sum + (b.first <= step && step <= b.last ? b.nbytes : 0), 0);
    if (live > peak.live) peak = { step, live };
  }
  const alive = buffers
    .filter((b) => b.first <= peak.step && peak.step <= b.last)
    .sort((a, b) => b.nbytes - a.nbytes);
  const names = alive.slice(0, 3).map((b) => `${b.name} (${bytes(b.nbytes)})`);
  const more = alive.length > 3 ? ` and ${alive.length - 3} more` : '';
  const shared = peak.live > size ? ', which share memory where one takes the place of another' : '';
  const call = calls[peak.step];
  return `The most is alive at call ${peak.step}${call ? ` (${callTitle(call)})` : ''}: ${bytes(peak.live)} in ${names.join(', ')}${more}${shared}.`;
}

function addressAxis(width, size, top) {
  const unit = 1024;
  const lines = ticks(0, size / unit, 4).values.filter((value) => top(value * unit) > ROOM.top + 16);
  const line = (name, y) =>
    svg('line', { class: name, x1: INSET.left, x2: INSET.left + width, y1: y, y2: y });
  const text = (name, y, value) =>
    svg('text', { class: name, x: INSET.left - 7, y: y + 4, 'text-anchor': 'end', text: value });
  const small = size / unit < 20 ? 1 : 0;
  return [
    ...lines.flatMap((value) => [
      line('grid', top(value * unit)),
      text('tick', top(value * unit), value ? `${decimals(value, small)} K` : '0'),
    ]),
    line('limit', top(size)),
    text('tick strong', top(size), `${decimals(size / unit, small)} K`),
  ];
}

function callAxis(width, height, from, to, scale) {
  const values = ticks(from, to, Math.max(3, width / 90)).values.filter((value) => Number.isInteger(value));
  return values.map((value) =>
    svg('text', {
      class: 'tick',
      x: scale(value),
      y: height - 9,
      'text-anchor': scale(value) < 24 ? 'start' : scale(value) > width - 20 ? 'end' : 'middle',
      text: value === values[0] ? `call ${value}` : String(value),
    }),
  );
}

function bufferTip(buffer, calls) {
  const call = writerOf(buffer);
  const reader = calls[buffer.last];
  return [
    el('strong', { text: call ? callTitle(call) : buffer.name }),
    el('code', { class: 'sub', text: buffer.name }),
    fact('size', exactBytes(buffer.nbytes)),
    fact('address', `${integer(buffer.offset)} to ${integer(buffer.offset + buffer.nbytes)}`),
    fact(
      'alive',
      `call ${buffer.first} to ${buffer.last}${reader && reader !== call ? ` (${callTitle(reader)})` : ''}`,
    ),
    buffer.tensors && buffer.tensors.length > 1 ? fact('shared by', buffer.tensors.join(', ')) : null,
  ].filter(Boolean);
}
