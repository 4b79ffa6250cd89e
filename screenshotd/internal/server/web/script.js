'use strict'
const form = document.getElementById('form')
const shots = document.getElementById('shots')

async function capture(query) {
  const figure = document.createElement('figure')
  const caption = document.createElement('figcaption')
  caption.textContent = 'waiting …'
  figure.append(caption)
  shots.prepend(figure)
  const began = performance.now()
  const took = () => `${Math.round(performance.now() - began)} ms`
  try {
    const resp = await fetch('capture?' + query)
    if (resp.ok) {
      const img = document.createElement('img')
      img.alt = 'the captured page'
      img.src = URL.createObjectURL(await resp.blob())
      caption.textContent = `${resp.headers.get('Screenshot-Size')}, target said ${resp.headers.get('Screenshot-Target-Status')}, ${took()}`
      figure.append(img)
      return
    }
    figure.className = 'no'
    const retry = resp.headers.get('Retry-After')
    const problem = await resp.json().catch(() => ({}))
    caption.textContent = `${resp.status} after ${took()}: ${problem.detail || problem.title || resp.statusText}` + (retry === null ? '' : ` Try again in ${retry} s.`)
  } catch (e) {
    figure.className = 'no'
    caption.textContent = `no answer after ${took()}: ${e}`
  }
}

form.addEventListener('submit', event => {
  event.preventDefault()
  const query = new URLSearchParams(new FormData(form)).toString()
  const times = Math.min(20, Number(document.getElementById('times').value) || 1)
  for (let i = 0; i < times; i++) capture(query)
})

async function pressure() {
  try {
    const p = await (await fetch('pressure')).json()
    document.getElementById('pressure').textContent =
      `${p.running} of ${p.maxConcurrent} slots taken, ${p.queued} waiting, ${p.recentlyRejected} refused in the last minute` + (p.isAvailable ? '' : ` (${p.reason})`)
  } catch { /* the server is away; it is asked again */ }
  setTimeout(pressure, 1000)
}
pressure()
