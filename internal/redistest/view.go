//go:build unix

package redistest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// clusterView is what one node knows of all, itself included.
type clusterView []clusterNode

// clusterNode is one line of CLUSTER NODES.
type clusterNode struct {
	id    string
	addr  string
	flags []string
	epoch int64
	slots []slotRange
}

type slotRange struct{ first, last int }

// view asks a node what it knows.
func view(node *Server) (clusterView, error) {
	reply, err := node.Do("CLUSTER", "NODES")
	if err != nil {
		return nil, err
	}
	var sees clusterView
	for line := range strings.Lines(fmt.Sprint(reply)) {
		other, err := parseNode(line)
		if err != nil {
			return nil, err
		}
		sees = append(sees, other)
	}
	return sees, nil
}

// parseNode reads: id host:port@bus[,hostname] flags primary pinged ponged epoch link slots…
func parseNode(line string) (clusterNode, error) {
	fields := strings.Fields(line)
	if len(fields) < 8 {
		return clusterNode{}, fmt.Errorf("not a line of CLUSTER NODES: %q", line)
	}
	addr, _, _ := strings.Cut(fields[1], "@")
	node := clusterNode{id: fields[0], addr: addr, flags: strings.Split(fields[2], ",")}
	var err error
	if node.epoch, err = strconv.ParseInt(fields[6], 10, 64); err != nil {
		return clusterNode{}, err
	}
	for _, slots := range fields[8:] {
		if strings.HasPrefix(slots, "[") { // on its way from or to another node, and listed by its owner besides
			continue
		}
		from, to, isRange := strings.Cut(slots, "-")
		if !isRange {
			to = from
		}
		first, err := strconv.Atoi(from)
		if err != nil {
			return clusterNode{}, err
		}
		last, err := strconv.Atoi(to)
		if err != nil {
			return clusterNode{}, err
		}
		node.slots = append(node.slots, slotRange{first, last})
	}
	return node, nil
}

// is reports a flag: myself, master, slave, fail?, fail, handshake, noaddr, …
func (n clusterNode) is(flag string) bool { return slices.Contains(n.flags, flag) }

func (n clusterNode) primary() bool { return n.is("master") }

func (n clusterNode) owns(slot int) bool {
	return slices.ContainsFunc(n.slots, func(r slotRange) bool { return r.first <= slot && slot <= r.last })
}

// self returns the node's own line.
func (v clusterView) self() clusterNode {
	for _, node := range v {
		if node.is("myself") {
			return node
		}
	}
	return clusterNode{}
}

// owner returns the primary of a slot, or the zero node.
func (v clusterView) owner(slot int) clusterNode {
	for _, node := range v {
		if node.primary() && node.owns(slot) {
			return node
		}
	}
	return clusterNode{}
}

// complete returns nil if the view has exactly so many primaries and replicas, and nobody in it is failing or half known.
func (v clusterView) complete(primaries, replicas int) error {
	var p, r int
	for _, node := range v {
		for _, flag := range []string{"fail", "fail?", "handshake", "noaddr"} {
			if node.is(flag) {
				return fmt.Errorf("it takes %s for %s", node.addr, flag)
			}
		}
		if node.primary() {
			p++
		} else {
			r++
		}
	}
	if p != primaries || r != replicas {
		return fmt.Errorf("it knows %d of %d primaries and %d of %d replicas", p, primaries, r, replicas)
	}
	return nil
}
