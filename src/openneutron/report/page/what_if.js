// What other choices would save, as cards: the largest saving first.

function drawWhatIf() {
  const home = section('what-if');
  if (!WHAT_IF.length) {
    const text = (SUMMARY.cpu_nodes || []).length
      ? 'No other choices were compiled for this report: that needs the model, not only a compiled program.'
      : 'There is nothing to try: no operator is left on the CPU, and no other choice was compiled.';
    home.querySelector('.lede').hidden = true;
    home.append(el('p', { class: 'empty', text }));
    return;
  }
  const rows = [...WHAT_IF].sort((a, b) => (b.saved_cycles || 0) - (a.saved_cycles || 0));
  home.append(el('ul', { class: 'cards' }, rows.map(whatIfCard)));
}

function whatIfCard(row) {
  const saved = row.saved_cycles || 0;
  const part = row.cycles_now ? Math.abs(saved) / row.cycles_now : 0;
  const effect =
    saved > 0 ? `saves ${time(saved)}` : saved < 0 ? `would cost ${time(-saved)} more` : 'changes no cycle';
  const change = (name, now, then, write) =>
    typeof now === 'number' && typeof then === 'number' && now !== then
      ? el('li', {}, `${name} `, el('span', { class: 'num', text: `${write(now)} → ${write(then)}` }))
      : null;
  const title = NODE.has(row.node)
    ? el('button', {
        type: 'button',
        class: 'link',
        text: row.title,
        onclick: () => select('node', row.node, 'what-if'),
      })
    : el('span', { text: row.title });
  return el(
    'li',
    { class: 'card' },
    el(
      'div',
      { class: 'head' },
      el('h3', {}, title),
      el('span', {
        class: `effect ${saved > 0 ? 'good' : 'quiet'}`,
        text: saved && part < 10 ? `${effect}, ${percent(part)}` : effect,
      }),
    ),
    row.detail ? el('p', { text: row.detail }) : null,
    el(
      'ul',
      { class: 'changes' },
      change('time', row.cycles_now, row.cycles_then, time),
      change('partitions', row.partitions_now, row.partitions_then, integer),
      change('border steps', row.border_steps_now, row.border_steps_then, integer),
    ),
  );
}
