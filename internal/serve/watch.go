package serve

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/march-id/march/allocator"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/access"
)

// sendTimeout is how long a client may take to receive one line.
const sendTimeout = 10 * time.Second

// watch serves WatchMigration as lines of JSON, {"result": ...} as the gateway
// has streams; an error after the first line is a line too, {"error": ...}.
func (h *rest) watch(conn *access.Conn) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(w)
		// A watch lasts as long as the migration, so the server's limits on a whole
		// request must not apply. The read deadline would end the request's
		// context.
		if err := control.SetReadDeadline(time.Time{}); err != nil {
			h.refuse(w, r, allocator.Errorf(allocator.Internal, "lift the read deadline: %w", err))
			return
		}
		out := &lines{w: w, conn: control}
		id := r.PathValue("id")
		if id == "" {
			id = r.URL.Query().Get("id")
		}
		err := conn.Stream(r.Context(), marchv1.ConsoleService_WatchMigration_FullMethodName,
			&marchv1.WatchMigrationRequest{Id: id}, func(answer any) error { return out.write("result", answer) })
		switch {
		case err == nil:
		case !out.begun:
			_ = control.SetWriteDeadline(time.Now().Add(sendTimeout))
			h.refuse(w, r, err)
		default:
			_, answer := errorOf(err)
			_ = out.write("error", answer) // the client may be gone
		}
	}
}

// lines is a stream of answers as lines of JSON.
type lines struct {
	w     http.ResponseWriter
	conn  *http.ResponseController
	begun bool
}

func (l *lines) write(field string, message any) error {
	body, err := newCodec(field == "result").Marshal(message)
	if err != nil {
		return err
	}
	line, err := json.Marshal(map[string]json.RawMessage{field: body})
	if err != nil {
		return err
	}
	if !l.begun {
		l.begun = true
		l.w.Header().Set("Content-Type", "application/x-ndjson")
	}
	if err := l.conn.SetWriteDeadline(time.Now().Add(sendTimeout)); err != nil {
		return err
	}
	if _, err := l.w.Write(append(line, '\n')); err != nil {
		return err
	}
	return l.conn.Flush()
}
