package promsem

import (
	"context"
	"fmt"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/internal/tally"
)

// RegisterIDs shows how ids stand in the store: how much of them is held, their limit, and
// who waits. It is for the few, at most 100, that somebody wants to be told of by name.
// All processes would show the same, so let one of them do it.
//
// Each scrape asks the store twice for each id, for 250 ms at most. What it does not tell
// in that time is left out of that scrape. stop takes the metrics out again.
func RegisterIDs(at prometheus.Registerer, sem *gotsem.Semaphore, name string, ids []string) (stop func(), err error) {
	if name == "" {
		return nil, fmt.Errorf("promsem: the name is empty: it tells this semaphore from the others")
	}
	if err := tally.CheckIDs(ids); err != nil {
		return nil, fmt.Errorf("promsem: %q: %w", name, err)
	}
	labels := prometheus.Labels{nameLabel: name}
	desc := func(metric, help string) *prometheus.Desc {
		return prometheus.NewDesc(metric, help, []string{"gotsem_id"}, labels)
	}
	c := &watched{
		sem: sem, ids: slices.Clone(ids),
		usage:    desc("gotsem_slot_usage", "The sum of weights that are held of the id, by all processes."),
		limit:    desc("gotsem_slot_limit", "The limit of the id that is in force. 0: it is paused."),
		override: desc("gotsem_limit_override", "1 if an operator set the limit of the id, else 0."),
		line:     desc("gotsem_line_length", "How many wait for the id, of all processes."),
		slotAge:  desc("gotsem_slot_age_seconds", "How long the oldest lease of the id is held. Absent above 1,000 slots, or where it is not known."),
	}
	if err := at.Register(c); err != nil {
		return nil, fmt.Errorf("promsem: %q: %w", name, err)
	}
	return func() { at.Unregister(c) }, nil
}

type watched struct {
	sem                                   *gotsem.Semaphore
	ids                                   []string
	usage, limit, override, line, slotAge *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *watched) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.usage, c.limit, c.override, c.line, c.slotAge} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *watched) Collect(ch chan<- prometheus.Metric) {
	for s := range tally.Look(context.Background(), c.sem, c.ids) {
		gauge := func(d *prometheus.Desc, v float64) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, s.ID)
		}
		gauge(c.usage, float64(s.Active))
		gauge(c.limit, float64(s.Limit))
		override := 0.0
		if s.LimitSet {
			override = 1
		}
		gauge(c.override, override)
		gauge(c.line, float64(s.Waiting))
		if s.SlotAgeSet {
			gauge(c.slotAge, s.SlotAge.Seconds())
		}
	}
}
