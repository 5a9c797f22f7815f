package main

import (
	"context"
	"fmt"

	"github.com/march-id/march/cmd/chaos/internal/record"
)

// follow begins to keep etcd's history.
func (d *driver) follow() {
}

// ended notes where etcd's history ends, once no one writes any longer.
func (d *driver) ended(ctx context.Context) error {
	for _, m := range d.Members {
		if s, err := m.Status(ctx); err == nil {
			d.note(record.Event{What: record.Ended, Revision: s.Header.GetRevision(), ClusterID: fmt.Sprintf("%x", s.Header.GetClusterId())})
			return nil
		}
	}
	return fmt.Errorf("no member of etcd answers")
}
