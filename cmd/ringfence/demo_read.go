package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ringfence/ringfence/engine"
)

// readBack reads the topic as a group, twice: once all of it, and once more from
// where the group stands, which must be the end.
func (d *demo) readBack(ctx context.Context, e *engine.Engine) error {
	began := time.Now()
	got := newProof()
	group := engine.ConsumerOptions{Topic: demoTopic, Group: demoGroup, From: engine.FromGroup()}
	if err := d.read(ctx, e, group, got, d.report.Lines); err != nil {
		return err
	}
	d.report.ReadSeconds = time.Since(began).Seconds()
	if err := got.equal(d.whole); err != nil {
		return unproven{fmt.Errorf("read back: %w", err)}
	}
	again := newProof()
	if err := d.read(ctx, e, group, again, 0); err != nil {
		return err
	}
	if again.records != 0 {
		return unproven{fmt.Errorf("group %q got %s a second time", demoGroup, plural(again.records, "record"))}
	}
	detail, err := e.Describe(ctx, demoTopic)
	if err != nil {
		return err
	}
	d.report.Ranges, d.report.Segments, d.report.Proved = detail.Ranges, detail.Segments, true
	return nil
}

// read adds everything a consumer gets to a proof; a group commits at the end.
func (d *demo) read(ctx context.Context, e *engine.Engine, o engine.ConsumerOptions, into *proof, expect int64) error {
	c, err := e.NewConsumer(o)
	if err != nil {
		return err
	}
	bar := d.progress("records read", expect, countText[int64])
	defer bar.end()
	for {
		page, err := c.Fetch(pageRecords)
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return errors.Join(err, c.Close())
		}
		if len(page.Skips) > 0 {
			return errors.Join(unproven{fmt.Errorf("a read skipped %d offsets", page.Skips[0].Offsets)}, c.Close())
		}
		for i := range page.Records {
			into.add(page.Records[i].Key, page.Records[i].Value, false)
		}
		bar.set(into.records)
		if page.CaughtUp {
			break
		}
	}
	if o.Group != "" {
		if err := c.Commit(ctx); err != nil {
			return errors.Join(err, c.Close())
		}
	}
	return c.Close()
}
