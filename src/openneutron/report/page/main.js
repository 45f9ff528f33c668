// The theme, the card of what is selected, and everything drawn once.

function theme() {
  const button = section('theme');
  const system = matchMedia('(prefers-color-scheme: dark)');
  const stored = () => {
    try {
      return localStorage.getItem('openneutron-theme');
    } catch {
      return null; // a page opened from a file may have no storage
    }
  };
  const isDark = () =>
    (document.documentElement.dataset.theme || (system.matches ? 'dark' : 'light')) === 'dark';
  const name = () =>
    button.setAttribute('aria-label', isDark() ? 'Switch to the light theme' : 'Switch to the dark theme');
  if (['light', 'dark'].includes(stored())) document.documentElement.dataset.theme = stored();
  button.addEventListener('click', () => {
    document.documentElement.dataset.theme = isDark() ? 'light' : 'dark';
    try {
      localStorage.setItem('openneutron-theme', document.documentElement.dataset.theme);
    } catch {
      // Then the choice lasts as long as the page.
    }
    name();
  });
  system.addEventListener('change', name);
  name();
}

function inspector() {
  const card = section('selected');
  follow(() => {
    card.hidden = selection.kind === null;
    document.body.classList.toggle('inspecting', !card.hidden);
    if (card.hidden) return;
    const node = selection.kind === 'node' ? NODE.get(selection.id) : null;
    const call = selection.kind === 'call' ? CALL.get(selection.id) : null;
    const jump = (id, text, there) =>
      there &&
      el('button', {
        type: 'button',
        class: 'link',
        text,
        onclick: () =>
          section(id).scrollIntoView({
            block: 'start',
            behavior: matchMedia('(prefers-reduced-motion: reduce)').matches ? 'auto' : 'smooth',
          }),
      });
    card.replaceChildren(
      el(
        'div',
        { class: 'head' },
        el('h2', { text: node ? shortOp(node.op) : callTitle(call) }),
        el('button', {
          type: 'button',
          class: 'tool',
          'aria-label': 'Clear the selection',
          title: 'Clear the selection (Esc)',
          text: '×',
          onclick: () => select(null, null, 'card'),
        }),
      ),
      el('code', { class: 'sub', text: node ? node.name : call.name }),
      el(
        'div',
        { class: 'facts' },
        ...(node
          ? [...nodeFacts(node), ...neighbours('from', node.inputs), ...neighbours('to', USERS.get(node.id))]
          : callFacts(call)),
      ),
      el(
        'nav',
        { class: 'jumps', 'aria-label': 'Where it is' },
        ...[
          jump('graph', 'graph', selection.nodes.size),
          jump('timeline', 'timeline', selection.calls.size),
          jump('memory', 'memory', selection.buffers.size),
          jump(
            'roofline',
            'roofline',
            [...selection.calls].some((i) => CALL.get(i)?.macs),
          ),
          jump('operators', 'table', selection.nodes.size),
        ].filter(Boolean),
      ),
    );
  });
  document.addEventListener('keydown', (event) => {
    if (event.key === 'Escape' && !document.querySelector('.expanded') && selection.kind)
      select(null, null, 'card');
    if (event.key === 'Escape') hideTip();
    if (event.key === '/' && !/^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName || '')) {
      const search = document.querySelector('#operators input[type=search]');
      if (!search) return;
      event.preventDefault();
      search.focus();
    }
  });
}

function neighbours(name, ids) {
  const known = ids.filter((id) => NODE.has(id));
  if (!known.length) return [];
  return [
    el(
      'div',
      { class: 'fact' },
      el('span', { class: 'name', text: name }),
      el(
        'span',
        {},
        known.slice(0, 4).map((id) =>
          el('button', {
            type: 'button',
            class: 'link chip',
            text: shortOp(NODE.get(id).op),
            title: NODE.get(id).name,
            onclick: () => select('node', id, 'card'),
          }),
        ),
      ),
    ),
  ];
}

function navigation() {
  const links = new Map(
    [...document.querySelectorAll('#contents a')].map((link) => [link.hash.slice(1), link]),
  );
  const watch = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) links.get(entry.target.id)?.classList.toggle('here', entry.isIntersecting);
    },
    { rootMargin: '-25% 0px -70% 0px' },
  );
  for (const id of links.keys()) watch.observe(section(id));
}

// The summary first; each further section in a task of its own, so that the page answers in between.
document.body.append(tip);
theme();
listen();
inspector();
drawSummary();
const rest = [drawGraph, drawTimeline, drawMemory, drawRoofline, drawErrors, drawWhatIf, drawOperators];
setTimeout(function next() {
  if (rest.length) {
    rest.shift()();
    setTimeout(next);
    return;
  }
  navigation();
  window.addEventListener('hashchange', followAddress);
  window.addEventListener('scroll', hideTip, { passive: true });
  followAddress();
  performance.mark('ready');
  document.documentElement.dataset.ready = 'yes';
});
