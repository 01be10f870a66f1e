const kept = new WeakMap()   // the time on the clock outlives a change of data

export default function (component) {
  const { data, parentElement: root } = component
  const $ = (q) => root.querySelector(q)
  const player = $('.player'), canvas = $('.player > canvas'), slider = $('.time'), clock = $('.clock')
  const play = $('.play'), back = $('.back'), step = $('.step'), live = $('.sr'), tip = $('.tip'), key = $('.key')
  const L = data.labels, end = data.end, k = data.scale
  const state = kept.get(root) || { at: 1, raf: 0 }
  kept.set(root, state)
  cancelAnimationFrame(state.raf)
  state.raf = 0
  if (state.observer) state.observer.disconnect()
  player.style.setProperty('--k', k)
  player.setAttribute('aria-label', L.player)
  canvas.setAttribute('aria-label', data.alt)
  slider.setAttribute('aria-label', L.time)
  back.setAttribute('aria-label', L.back); back.title = L.back; back.textContent = '◂'
  step.setAttribute('aria-label', L.step); step.title = L.step; step.textContent = '▸'

  const time = () => state.at * end
  const show = (s) => end >= 10 ? s.toFixed(1) + ' s' : end >= 1 ? s.toFixed(2) + ' s' : (s * 1000).toFixed(0) + ' ms'
  const fill = (text, values) => text.replace(/\{(\w+)\}/g, (_, name) => values[name])
  const theme = () => {
    const c = getComputedStyle(player)
    const probe = document.createElement('canvas').getContext('2d')
    probe.fillStyle = c.getPropertyValue('--st-background-color').trim() || '#fff'
    const hex = probe.fillStyle
    const dark = [[1, .3], [3, .59], [5, .11]].reduce((sum, [i, weight]) => sum + weight * parseInt(hex.slice(i, i + 2), 16), 0) < 128
    return { dark, paint: data.colors[dark ? 'dark' : 'light'], text: c.color, back: hex, font: c.fontFamily,
             rule: c.getPropertyValue('--st-border-color').trim() || '#ccc',
             soft: c.getPropertyValue('--st-secondary-background-color').trim() || '#eee' }
  }
  const bar = (g, t, phase, x, y, w, h) => {
    const color = t.paint[phase]
    if (phase === 'prefill' || phase === 'decode') { g.fillStyle = color; g.fillRect(x, y, w, h); return }
    g.save(); g.beginPath(); g.rect(x, y, w, h); g.clip()
    g.globalAlpha = phase === 'idle' ? .22 : .3; g.fillStyle = color; g.fillRect(x, y, w, h)
    g.globalAlpha = phase === 'idle' ? .55 : .9; g.strokeStyle = color; g.lineWidth = phase === 'preempted' ? 3 : 1
    const gap = phase === 'preempted' ? 9 : 6
    for (let d = x - h - ((x - h) % gap); d < x + w; d += gap) {
      g.beginPath()
      phase === 'idle' ? (g.moveTo(d + h, y), g.lineTo(d, y + h)) : (g.moveTo(d, y), g.lineTo(d + h, y + h))
      g.stroke()
    }
    g.restore()
    g.strokeStyle = color; g.lineWidth = 1; g.strokeRect(x + .5, y + .5, Math.max(0, w - 1), h - 1)
  }
  const nice = (span, n) => {
    const raw = span / n, p = 10 ** Math.floor(Math.log10(raw))
    return [1, 2, 5, 10].map((m) => m * p).find((v) => v >= raw)
  }

  // The height of a seat: what the window leaves below the canvas' top, so that every lane is seen without scrolling.
  const main = document.querySelector('[data-testid=stMain]')
  const rows = (around) => {
    const top = canvas.getBoundingClientRect().top + (main ? main.scrollTop : 0)
    const room = innerHeight - top - data.lanes.length * around - 48 * k     // the axis and the key below it
    return Math.max(data.row - 5, Math.min(data.row + 8, room / data.lanes.reduce((n, lane) => n + lane.seats, 0)))
  }
  let hits = [], seen = new Set()     // seen: phases wide enough to be told apart
  const label = (g, t, words, x, y, w, h) => {     // words on a plate
    g.fillStyle = t.back; g.beginPath(); g.roundRect(x, y, w, h, 5); g.fill()
    g.fillStyle = t.text; g.textAlign = 'center'; g.fillText(words, x + w / 2, y + h / 2 + .5); g.textAlign = 'left'
  }
  const draw = () => {
    const w = canvas.clientWidth
    if (!w) return
    const t = theme(), narrow = w < 520, head = 22 * k, gapAfter = 8, row = narrow ? data.row : rows(head + gapAfter)
    const pad = row < 14 * k ? 1 : 2     // between seats
    const left = (narrow ? 22 : 62) * (k > 1 ? 1.2 : 1), right = 10, axis = 20 * k, dpr = window.devicePixelRatio || 1
    const h = data.lanes.reduce((a, lane) => a + head + lane.seats * row + gapAfter, 0) + axis
    canvas.width = w * dpr; canvas.height = h * dpr; canvas.style.height = h + 'px'
    const g = canvas.getContext('2d'), T = time(), X = (s) => left + s * (w - left - right) / end
    g.scale(dpr, dpr); g.textBaseline = 'middle'
    const type = (size, weight) => { g.font = (weight || 400) + ' ' + size * k + 'px ' + t.font }
    hits = []
    const said = []
    const idleNote = (longest, y, seats) => {
      if (!longest) return
      type(13)
      const nw = g.measureText(L.idle_note).width + 20
      if (nw + 10 < longest.bw) label(g, t, L.idle_note, longest.x + longest.bw / 2 - nw / 2, y + seats * row / 2 - 12 * k, nw, 24 * k)
    }
    const passed = (lane) => lane.marks.filter(([s]) => s <= T)
    const flag = (lane, y, bottom) => {     // a line with a head; its words stand above the seats, where they cover none
      for (const [s] of passed(lane)) {
        g.strokeStyle = g.fillStyle = t.text; g.lineWidth = 2
        g.beginPath(); g.moveTo(X(s), y); g.lineTo(X(s), bottom); g.stroke()
        g.beginPath(); g.moveTo(X(s) - 6 * k, y - 4); g.lineTo(X(s) + 6 * k, y - 4); g.lineTo(X(s), y + 6 * k); g.fill()
      }
    }
    let y = 0
    for (const lane of data.lanes) {
      const done = lane.done.filter((d) => d <= T + 1e-9).length
      const busy = new Set(), idle = new Set()
      for (const [seat, , a, b, p] of lane.segments) {
        if (a <= T && T < b) (data.phases[p] === 'idle' ? idle : busy).add(seat)
      }
      type(narrow ? 13 : 14, 600); g.fillStyle = t.text; g.textAlign = 'left'
      const name = narrow || g.measureText(lane.title).width > w ? lane.title.split(/[:：]/)[0] : lane.title
      g.fillText(name, 0, y + head / 2)
      const tw = g.measureText(name).width
      if (!lane.cover) {
        const values = { done, of: lane.done.length, busy: busy.size, seats: lane.seats, idle: lane.seats - busy.size }
        const text = T >= end - 1e-9 ? fill(L.lane_end, { ...values, last: show(lane.done[lane.done.length - 1] || 0) })
                                     : fill(L.lane, values)
        const marks = passed(lane).map(([, words]) => '▼ ' + words), all = [...marks, text].join(' · ')
        said.push(lane.title + ': ' + all)
        type(13, marks.length ? 600 : 400)
        const fits = [all, ...marks].find((words) => tw + right + g.measureText(words).width < w)
        if (fits) { g.textAlign = 'right'; g.fillText(fits, w - right, y + head / 2); g.textAlign = 'left' }
      }
      y += head
      const every = row < 14 * k ? 2 : 1     // low seats: every second one has its name, large enough to be read
      for (let i = 0; i < lane.seats; i++) {
        type(Math.min(12, every * row / k - 2)); g.globalAlpha = .7; g.fillStyle = t.text
        if (i % every === 0) g.fillText(narrow ? i + 1 : fill(L.seat, { n: i + 1 }), 0, y + i * row + row / 2)
        g.globalAlpha = 1
        g.fillStyle = t.soft; g.fillRect(left, y + i * row + pad, w - left - right, row - 2 * pad)
      }
      const bottom = y + lane.seats * row
      if (lane.cover) {
        bar(g, t, 'idle', left, y + 2, w - left - right, lane.seats * row - 4)
        type(narrow ? 15 : 18, 600)
        const words = lane.cover, cw = Math.min(g.measureText(words).width + 36, w - left - right - 12), ch = 40 * k
        const cx = left + (w - left - right) / 2, cy = y + lane.seats * row / 2
        g.fillStyle = t.back; g.beginPath(); g.roundRect(cx - cw / 2, cy - ch / 2, cw, ch, 10); g.fill()
        g.fillStyle = t.text; g.textAlign = 'center'; g.fillText(words, cx, cy, cw - 16); g.textAlign = 'left'
      } else {
        let longest = null
        for (const [seat, request, a, b, p] of lane.segments) {
          if (a > T) continue
          const x = X(a), full = X(Math.min(b, T)) - x, gap = full > 4 ? 1 : 0, bw = Math.max(1, full - gap), phase = data.phases[p]
          const top = y + seat * row + pad, bh = row - 2 * pad
          if ((b - a) * (w - left - right) / end >= 2) seen.add(phase)
          bar(g, t, phase, x, top, bw, bh)
          hits.push([x, top, x + bw, top + bh, lane.title, request, phase, a, b])
          const words = phase === 'decode' ? '' + (request + 1) : phase === 'prefill' ? 'P' : ''
          type(Math.min(11, bh / k), 600)
          if (words && g.measureText(words).width + 6 < bw) {
            g.fillStyle = t.dark ? '#0B0F14' : '#FFFFFF'; g.fillText(words, x + 3, top + bh / 2 + .5)
          }
          if (phase === 'idle' && (!longest || b - a > longest.span + 1e-9)) longest = { x, bw, span: b - a, seat }
        }
        idleNote(longest, y, lane.seats - 1)
        flag(lane, y, bottom)
      }
      y = bottom + gapAfter
    }
    const foot = h - axis
    type(12); g.fillStyle = t.text; g.textAlign = 'center'; g.globalAlpha = .8
    const unit = nice(end, narrow ? 4 : 8)
    for (let s = 0; s <= end * 1.0001; s += unit) {
      g.fillRect(X(s), foot - 4, 1, 4)
      if (X(s) < w - 14) g.fillText(end >= 1 ? +s.toFixed(2) + (s === 0 ? ' s' : '') : Math.round(s * 1000) + (s === 0 ? ' ms' : ''),
        Math.max(X(s), left + 8), foot + axis / 2)
    }
    g.globalAlpha = 1; g.textAlign = 'left'
    if (data.guess) {
      const [s, name] = data.guess
      g.save(); g.setLineDash([6, 4]); g.lineWidth = 2; g.strokeStyle = t.text
      g.beginPath(); g.moveTo(X(s), foot - gapAfter - data.lanes[data.lanes.length - 1].seats * row); g.lineTo(X(s), foot)
      g.stroke(); g.restore()
      type(13, 600)
      const gw = g.measureText(name).width + 12, gx = Math.min(Math.max(X(s) - gw / 2, left), w - right - gw)
      const gy = foot     // on the axis
      g.fillStyle = t.text; g.beginPath(); g.roundRect(gx, gy, gw, 20 * k, 5); g.fill()
      g.fillStyle = t.back; g.fillText(name, gx + 6, gy + 10 * k + .5)
    }
    if (T < end) {
      g.strokeStyle = t.text; g.lineWidth = 1.5; g.beginPath(); g.moveTo(X(T), 0); g.lineTo(X(T), foot); g.stroke()
    }
    clock.textContent = show(T)
    slider.value = Math.round(state.at * 1000)
    slider.setAttribute('aria-valuetext', show(T))
    state.said = show(T) + '. ' + said.join('. ')
  }
  const say = () => { live.textContent = state.said }
  const go = (at) => { state.at = Math.min(1, Math.max(0, at)); draw() }
  const face = () => {
    play.textContent = state.raf ? '❚❚' : '▶'
    play.setAttribute('aria-label', state.raf ? L.pause : L.play); play.title = state.raf ? L.pause : L.play
  }
  const stop = () => { cancelAnimationFrame(state.raf); state.raf = 0; face(); say() }
  const start = () => {
    if (state.at >= 1) state.at = 0
    let before = performance.now()
    const frame = (now) => {
      go(state.at + (now - before) / 9000)     // the whole picture in nine seconds
      before = now
      if (state.at >= 1) { stop(); return }
      state.raf = requestAnimationFrame(frame)
    }
    state.raf = requestAnimationFrame(frame); face()
  }
  play.onclick = () => state.raf ? stop() : start()
  step.onclick = () => { stop(); go((time() + data.step) / end); say() }
  back.onclick = () => { stop(); go((time() - data.step) / end); say() }
  slider.oninput = () => { if (state.raf) stop(); go(slider.value / 1000) }
  slider.onchange = say
  player.onkeydown = (e) => {
    if (e.target !== player) return
    const act = { ' ': play.onclick, ArrowRight: step.onclick, ArrowLeft: back.onclick,
                  Home: () => { stop(); go(0); say() }, End: () => { stop(); go(1); say() } }[e.key]
    if (act) { e.preventDefault(); e.stopPropagation(); act() }
  }
  canvas.onpointermove = (e) => {
    const box = canvas.getBoundingClientRect(), x = e.clientX - box.left, y = e.clientY - box.top
    const hit = hits.find(([a, b, c, d]) => x >= a - 1 && x <= c + 1 && y >= b && y <= d)
    tip.hidden = !hit
    if (!hit) return
    tip.textContent = fill(L.tip, { n: hit[5] + 1, phase: L[hit[6]], from: show(hit[7]), to: show(hit[8]) })
    tip.style.left = Math.min(x + 12, Math.max(0, box.width - 230)) + 'px'
    tip.style.top = (y + canvas.offsetTop + 14) + 'px'
  }
  canvas.onpointerleave = () => { tip.hidden = true }
  const keys = () => {
    key.replaceChildren(...data.phases.filter((phase) => seen.has(phase)).map((phase) => {
      const li = document.createElement('li'), c = document.createElement('canvas'), t = theme()
      c.width = 44; c.height = 24
      const g = c.getContext('2d'); g.scale(2, 2); bar(g, t, phase, 0, 0, 22, 12)
      li.append(c, L[phase]); return li
    }))
  }
  face(); draw(); keys()
  const covered = data.lanes.some((lane) => lane.cover)
  if (state.covered && !covered && !matchMedia('(prefers-reduced-motion: reduce)').matches) { state.at = 0; start() }
  state.covered = covered
  state.observer = new ResizeObserver(() => { draw(); keys() }); state.observer.observe(canvas)
  if (main) state.observer.observe(main.firstElementChild)    // what stands above may grow
  const dress = new MutationObserver(() => { draw(); keys() })
  dress.observe(document.head, { childList: true, subtree: true })
  const dark = matchMedia('(prefers-color-scheme: dark)')
  const redraw = () => setTimeout(() => { draw(); keys() }, 60)
  dark.addEventListener('change', redraw)
  return () => {
    cancelAnimationFrame(state.raf); state.raf = 0
    state.observer.disconnect(); dress.disconnect(); dark.removeEventListener('change', redraw)
  }
}
