package rest

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"time"

	"google.golang.org/grpc"

	"github.com/march-id/march/allocator"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// sendTimeout is how long a client may take to receive one line.
const sendTimeout = 10 * time.Second

// watch serves WatchMigration as lines of JSON, {"result": ...} as the gateway
// has streams; an error after the first line is a line too, {"error": ...}.
func (h *handler) watch(console marchv1.ConsoleServiceClient) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		conn := http.NewResponseController(w)
		// A watch lasts as long as the migration, so the server's limits on a whole
		// request must not apply. The read deadline would end the request's
		// context.
		if err := conn.SetReadDeadline(time.Time{}); err != nil {
			h.refuse(w, r, allocator.Errorf(allocator.Internal, "lift the read deadline: %w", err))
			return
		}
		out := &lines{w: w, conn: conn}
		id := r.PathValue("id")
		if id == "" {
			id = r.URL.Query().Get("id")
		}
		err := out.copy(console.WatchMigration(r.Context(), &marchv1.WatchMigrationRequest{Id: id}))
		switch {
		case errors.Is(err, io.EOF):
		case !out.begun:
			_ = conn.SetWriteDeadline(time.Now().Add(sendTimeout))
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

// copy writes a stream's answers until it ends. Its error is never nil: io.EOF is a good end.
func (l *lines) copy(answers grpc.ServerStreamingClient[marchv1.WatchMigrationResponse], err error) error {
	for err == nil {
		var answer *marchv1.WatchMigrationResponse
		if answer, err = answers.Recv(); err == nil {
			err = l.write("result", answer)
		}
	}
	return err
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
