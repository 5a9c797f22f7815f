package imports

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/march-id/march/allocator"
)

// cosidBegin and cosidEnd enclose a name in CosId's keys. The braces are its own.
const (
	cosidBegin, cosidEnd = "cosid:{", "}.adder"
	cosidKeys            = cosidBegin + "*" + cosidEnd
)

const (
	redisPatience = 10 * time.Second // of each round trip
	scanCount     = 1000
	longestNumber = "31" // the last byte that is read of a value: more is no number
)

// ReadRedis reads the counters of a Redis, redis://[USER:PASSWORD@]HOST[:PORT][/DB] or
// rediss:// over TLS, whose keys match a pattern as SCAN has it. Of system cosid the keys are
// those of CosId's distributor, and the rows have the names in them. It reads this one
// server: of a cluster each has to be read. Keys come up in the course of a scan, so a
// counter that grows is read at some moment of it.
//
// Its error is Invalid for a URL that is none, Refused where the server refuses, Unavailable
// where it does not answer.
func ReadRedis(ctx context.Context, address, match string, s *System) (rows []Row, bad []*Bad, err error) {
	switch {
	case s == CosID && match == "":
		match = cosidKeys
	case s == Redis && match == "":
		return nil, nil, allocator.Errorf(allocator.Invalid,
			"match: must be given for a Redis: which keys are counters, order:* say")
	case s != CosID && s != Redis:
		return nil, nil, allocator.Errorf(allocator.Invalid,
			"system: %q is not in Redis; allowed with redis://: redis, cosid", s.Name)
	}
	r, err := dialRedis(ctx, address)
	if err != nil {
		return nil, nil, err
	}
	defer r.close()
	seen := make(map[string]bool)
	for cursor := "0"; ; {
		var keys []string
		if cursor, keys, err = r.scan(cursor, match); err != nil {
			return nil, nil, err
		}
		fresh := keys[:0]
		for _, key := range keys { // a scan may find a key more than once
			if !seen[key] {
				seen[key] = true
				fresh = append(fresh, key)
			}
		}
		if len(seen) > maxRows {
			return nil, nil, allocator.Errorf(allocator.Invalid,
				"match: %q is more than %d keys; allowed: up to so many in one import", match, maxRows)
		}
		values, err := r.get(fresh)
		if err != nil {
			return nil, nil, err
		}
		for i, key := range fresh {
			row, wrong := s.keyRow(key, values[i])
			if wrong != nil {
				bad = append(bad, wrong)
				continue
			}
			rows = append(rows, row)
		}
		if cursor == "0" {
			return rows, bad, nil
		}
	}
}

// keyRow reads a key and its value; nil is no value, or one that is no string.
func (s *System) keyRow(key string, value *string) (Row, *Bad) {
	name, place := key, "key "+strconv.Quote(shorten(key))
	if s == CosID {
		inner, begins := strings.CutPrefix(key, cosidBegin)
		inner, ends := strings.CutSuffix(inner, cosidEnd)
		if !begins || !ends {
			return Row{}, &Bad{place, "key", key, cosidKeys}
		}
		name = inner
	}
	return s.row(place, []*string{&name, value})
}

// redis is a connection to a Redis, in RESP2, which all versions speak.
type redis struct {
	conn net.Conn
	in   *bufio.Reader
	stop func() bool
}

func dialRedis(ctx context.Context, address string) (*redis, error) {
	u, err := url.Parse(address)
	if err != nil || u.Hostname() == "" || u.Scheme != "redis" && u.Scheme != "rediss" {
		return nil, allocator.Errorf(allocator.Invalid,
			"source: no URL of a Redis; allowed: redis://[USER:PASSWORD@]HOST[:PORT][/DB], rediss:// over TLS")
	}
	port, db := u.Port(), strings.Trim(u.Path, "/")
	if port == "" {
		port = "6379"
	}
	dialer := &net.Dialer{Timeout: redisPatience}
	hostPort := net.JoinHostPort(u.Hostname(), port)
	var conn net.Conn
	if u.Scheme == "rediss" {
		conn, err = (&tls.Dialer{NetDialer: dialer}).DialContext(ctx, "tcp", hostPort)
	} else {
		conn, err = dialer.DialContext(ctx, "tcp", hostPort)
	}
	if err != nil {
		return nil, allocator.Errorf(allocator.Unavailable, "Redis: %w", err)
	}
	r := &redis{conn: conn, in: bufio.NewReader(conn)}
	r.stop = context.AfterFunc(ctx, func() { _ = conn.Close() })
	var commands [][]string
	if password, ok := u.User.Password(); ok && u.User.Username() != "" {
		commands = append(commands, []string{"AUTH", u.User.Username(), password})
	} else if ok {
		commands = append(commands, []string{"AUTH", password})
	}
	if db != "" && db != "0" {
		commands = append(commands, []string{"SELECT", db})
	}
	replies, err := r.ask(commands...)
	if err == nil {
		err = refusal(replies...)
	}
	if err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

func (r *redis) close() {
	r.stop()
	_ = r.conn.Close()
}

// refused is an error that Redis answered.
type refused string

// refusal returns the first of replies that is an error, nil for none.
func refusal(replies ...any) error {
	for _, reply := range replies {
		if why, ok := reply.(refused); ok {
			return allocator.Errorf(allocator.Refused, "Redis: %s", string(why))
		}
	}
	return nil
}

// ask sends commands at once and returns their replies.
func (r *redis) ask(commands ...[]string) ([]any, error) {
	if err := r.conn.SetDeadline(time.Now().Add(redisPatience)); err != nil {
		return nil, allocator.Errorf(allocator.Unavailable, "Redis: %w", err)
	}
	var out []byte
	for _, command := range commands {
		out = fmt.Appendf(out, "*%d\r\n", len(command))
		for _, word := range command {
			out = fmt.Appendf(out, "$%d\r\n%s\r\n", len(word), word)
		}
	}
	sent := make(chan error, 1) // while replies are read: a server that cannot write does not read
	go func() {
		_, err := r.conn.Write(out)
		sent <- err
	}()
	replies := make([]any, 0, len(commands))
	var err error
	for range commands {
		var reply any
		if reply, err = readReply(r.in, 0); err != nil {
			_ = r.conn.Close() // ends the write
			break
		}
		replies = append(replies, reply)
	}
	if wrote := <-sent; err == nil {
		err = wrote
	}
	if err != nil {
		return nil, allocator.Errorf(allocator.Unavailable, "Redis: %w", err)
	}
	return replies, nil
}

// scan returns some keys, and where the scan goes on: "0" at its end.
func (r *redis) scan(cursor, match string) (next string, keys []string, err error) {
	replies, err := r.ask([]string{"SCAN", cursor, "MATCH", match, "COUNT", strconv.Itoa(scanCount)})
	if err == nil {
		err = refusal(replies...)
	}
	if err != nil {
		return "", nil, err
	}
	pair, _ := replies[0].([]any)
	if len(pair) == 2 {
		next, _ = pair[0].(string)
		list, ok := pair[1].([]any)
		for _, item := range list {
			key, isKey := item.(string)
			ok = ok && isKey
			keys = append(keys, key)
		}
		if ok && next != "" {
			return next, keys, nil
		}
	}
	return "", nil, errNotRedis
}

// get returns the values of keys: nil for one that is no string, empty for one that is gone.
func (r *redis) get(keys []string) ([]*string, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	commands := make([][]string, len(keys))
	for i, key := range keys {
		commands[i] = []string{"GETRANGE", key, "0", longestNumber} // MGET is refused by a cluster
	}
	replies, err := r.ask(commands...)
	if err != nil {
		return nil, err
	}
	values := make([]*string, len(keys))
	for i, reply := range replies {
		switch reply := reply.(type) {
		case string:
			values[i] = &reply
		case refused:
			if !strings.HasPrefix(string(reply), "WRONGTYPE ") {
				return nil, refusal(reply)
			}
		default:
			return nil, errNotRedis
		}
	}
	return values, nil
}

var errNotRedis = allocator.Errorf(allocator.Unavailable, "Redis: an answer that is not one of Redis")

// Bounds of a reply.
const (
	maxBulk  = 1 << 20
	maxItems = 1 << 20
	maxDepth = 4
)

// readReply reads a reply: string, int64, nil, refused or []any of these. Its error is of
// reading, or errNotRedis.
func readReply(in *bufio.Reader, depth int) (any, error) {
	line, err := in.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		return nil, errNotRedis
	}
	if err != nil {
		return nil, err
	}
	if len(line) < 3 || line[len(line)-2] != '\r' {
		return nil, errNotRedis
	}
	kind, text := line[0], string(line[1:len(line)-2])
	switch kind {
	case '+':
		return text, nil
	case '-':
		return refused(text), nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return nil, errNotRedis
	}
	switch {
	case kind == ':':
		return n, nil
	case n == -1 && (kind == '$' || kind == '*'):
		return nil, nil
	case kind == '$' && n >= 0 && n <= maxBulk:
		bulk := make([]byte, n+2)
		if _, err := io.ReadFull(in, bulk); err != nil {
			return nil, err
		}
		if string(bulk[n:]) != "\r\n" {
			return nil, errNotRedis
		}
		return string(bulk[:n]), nil
	case kind == '*' && n >= 0 && n <= maxItems && depth < maxDepth:
		var items []any // grows with what comes, not with what the length claims
		for range n {
			item, err := readReply(in, depth+1)
			if err != nil {
				return nil, err
			}
			items = append(items, item)
		}
		if items == nil {
			items = []any{}
		}
		return items, nil
	}
	return nil, errNotRedis
}
