// Everything that is computed, with its cycles, and why some of it stays on the CPU.

function drawOperators() {
  const home = section('operators');
  const rows = NODES.filter((node) => node.where !== 'io');
  if (!rows.length) {
    home.append(el('p', { class: 'empty', text: 'Nothing is known of the operators of this program.' }));
    return;
  }
  const most = Math.max(1, ...rows.map((node) => node.cycles || 0));
  const columns = [
    {
      title: 'operator',
      value: (node) => shortOp(node.op),
      text: (node) => `${node.op} ${node.name}`,
      cell: (node) => [el('span', { text: shortOp(node.op) }), el('code', { class: 'sub', text: node.name })],
    },
    {
      title: 'runs on',
      value: placeName,
      cell: (node) =>
        el(
          'span',
          { class: 'badge' },
          el('span', { class: `swatch ${placeClass(node)}`, 'aria-hidden': 'true' }),
          placeName(node),
        ),
    },
    {
      title: 'result',
      value: shape,
      cell: (node) => el('span', { class: 'badge', text: shape(node) }),
      minor: true,
    },
    {
      title: 'MACs',
      number: true,
      value: (node) => node.macs || 0,
      cell: (node) => (node.macs ? integer(node.macs) : ''),
      minor: true,
    },
    {
      title: 'cycles',
      number: true,
      value: (node) => node.cycles || 0,
      cell: (node) => (node.cycles ? integer(node.cycles) : ''),
    },
    {
      title: 'share',
      number: true,
      value: (node) => node.cycles || 0,
      text: () => '',
      cell: (node) =>
        node.cycles
          ? [
              meter(node.cycles / most, placeClass(node)),
              el('span', { class: 'part', text: percent(node.cycles / TOTAL) }),
            ]
          : '',
    },
  ];
  if (rows.some((node) => node.reason)) {
    columns.splice(2, 0, {
      title: 'why on the CPU',
      value: (node) => (node.reason ? `${node.reason.code} ${node.reason.reason}` : ''),
      text: (node) => (node.reason ? `${node.reason.code} ${node.reason.reason} ${node.reason.hint}` : ''),
      cell: (node) =>
        node.reason
          ? [
              el('code', { text: node.reason.code }),
              ` ${node.reason.reason}`,
              node.reason.hint ? el('span', { class: 'sub', text: node.reason.hint }) : null,
            ]
          : '',
    });
  }
  const on = (where) => rows.filter((node) => node.where === where).length;
  const filters =
    on('cpu') && on('npu')
      ? [
          { title: 'all', test: () => true },
          { title: `NPU ${integer(on('npu'))}`, test: (node) => node.where === 'npu' },
          { title: `CPU ${integer(on('cpu'))}`, test: (node) => node.where === 'cpu' },
        ]
      : [];
  home.append(
    dataTable({
      name: 'operators',
      columns,
      rows,
      key: (node) => node.id,
      filters,
      act: (node) => toggle('node', node.id, 'operators'),
      isChosen: (node) => selection.nodes.has(node.id),
    }),
  );
  if (DATA.measured?.length) home.append(folded('Measured on a board', measuredTimes, 'measured'));
  if (DATA.counts) home.append(folded(`Counted on an emulated ${DATA.counts.core}`, countedSteps, 'counts'));
}

// What `openneutron run --board` measured, oldest first.
function measuredTimes() {
  const number = (title, name) => ({
    title,
    number: true,
    value: (run) => run[name],
    cell: (run) => integer(run[name]),
  });
  const columns = [
    { title: 'when', value: (run) => run.when, minor: true },
    { title: 'firmware', value: (run) => run.firmware },
    number('median', 'median'),
    number('least', 'minimum'),
    number('most', 'maximum'),
    { title: 'unit', value: (run) => run.unit },
    number('inferences', 'inferences'),
  ];
  const note = `The estimate for the chip is ${DATA.summary.time_us_estimated} microseconds. An emulator counts instructions.`;
  const rows = DATA.measured;
  return [
    el('p', { class: 'lede', text: note }),
    dataTable({ name: 'measurements', columns, rows, key: (run) => `${run.when} ${run.firmware}` }),
  ];
}

// What `openneutron firmware --run` counted, beside the estimates.
function countedSteps() {
  const number = (title, name) => ({
    title,
    number: true,
    value: (step) => step[name],
    cell: (step) => integer(step[name]),
  });
  const columns = [
    { title: 'method', value: (step) => step.method, minor: true },
    { title: 'step', value: (step) => step.operator },
    number('instructions', 'instructions'),
    number('of these at the border', 'border'),
    number('cycles, estimated', 'estimated_cycles'),
  ];
  const note =
    'Instructions of the emulated core, not cycles; for a delegate, which the NPU computes on the chip, the ' +
    'estimate is the NPU’s.';
  const rows = DATA.counts.steps;
  return [
    el('p', { class: 'lede', text: note }),
    dataTable({ name: 'steps', columns, rows, key: (step) => `${step.method} ${step.instruction}` }),
  ];
}
