package gotsem

// releaseQueue is a heap: what is due first is at its head.
type releaseQueue []*pendingRelease

func (q releaseQueue) Len() int { return len(q) }

func (q releaseQueue) Less(i, j int) bool { return q[i].due < q[j].due }

func (q releaseQueue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

func (q *releaseQueue) Push(x any) {
	d := x.(*pendingRelease)
	d.index = len(*q)
	*q = append(*q, d)
}

func (q *releaseQueue) Pop() any {
	old := *q
	d := old[len(old)-1]
	old[len(old)-1] = nil
	*q = old[:len(old)-1]
	d.index = -1
	return d
}
