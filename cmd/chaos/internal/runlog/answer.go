package runlog

import (
	"fmt"
	"time"

	"github.com/march-id/march/allocator"
)

// Answer is the IDs that a caller got in one answer, or in several of a stream; or how a call failed.
type Answer struct {
	// Sent is when the first of them was requested, Received when the last came.
	Sent     time.Time      `json:"sent"`
	Received time.Time      `json:"received"`
	Room     allocator.Room `json:"room"`
	// Instance is empty for IDs of api/client, from segments leased from any instance of the room: these IDs
	// need not grow. The others that one caller gets of one instance only grow, per tag.
	Instance allocator.Instance `json:"instance,omitempty"`
	Tag      allocator.Tag      `json:"tag"`
	// Runs are in the order in which the IDs came.
	Runs []allocator.Run `json:"runs,omitempty"`
	// Failed is the way in which the call failed, empty if it did not: the name of an allocator.Kind if
	// March returned one, or another word. Error is its text.
	Failed string `json:"failed,omitempty"`
	Error  string `json:"error,omitempty"`
}

// Who names the callers of one tag at an instance; if instance is empty, the Go client's at the
// room.
func Who(room allocator.Room, instance allocator.Instance, tag allocator.Tag) string {
	if instance == "" {
		instance = "client"
	}
	return fmt.Sprintf("%s/%s %s", room, instance, tag)
}

// Who names the caller.
func (a Answer) Who() string { return Who(a.Room, a.Instance, a.Tag) }
