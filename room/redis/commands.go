package redis

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/internal/foreign"
)

// command is one of the commands that the door knows.
type command struct {
	do func(*conn, [][]byte)
	// least and most bound the number of words, the command's name included.
	least, most int
	now         bool // also in a transaction it is executed at once
	needs       bool // a caller that is not barred; the commands of tags ask for the tag's right instead
}

const many = maxArguments

// newCommands returns the commands by their names in lower case.
func newCommands() map[string]command {
	return map[string]command{
		"incr":    {do: (*conn).incr, least: 2, most: 2},
		"incrby":  {do: (*conn).incrBy, least: 3, most: 3},
		"get":     {do: (*conn).get, least: 2, most: 2},
		"mget":    {do: (*conn).mget, least: 2, most: many},
		"exists":  {do: (*conn).exists, least: 2, most: many},
		"set":     {do: (*conn).set, least: 3, most: many},
		"setnx":   {do: (*conn).setNX, least: 3, most: 3},
		"ping":    {do: (*conn).ping, least: 1, most: 2, needs: true},
		"echo":    {do: func(c *conn, args [][]byte) { c.bulk(string(args[1])) }, least: 2, most: 2, needs: true},
		"select":  {do: (*conn).selects, least: 2, most: 2, needs: true},
		"client":  {do: (*conn).client, least: 2, most: many, needs: true},
		"config":  {do: (*conn).config, least: 2, most: many, needs: true},
		"command": {do: (*conn).commandInfo, least: 1, most: many, needs: true},
		"info":    {do: (*conn).info, least: 1, most: many, needs: true},
		"hello":   {do: (*conn).hello, least: 1, most: many, now: true},
		"auth":    {do: (*conn).auth, least: 2, most: 3, now: true},
		"quit":    {do: (*conn).quit, least: 1, most: many, now: true},
		"reset":   {do: (*conn).reset, least: 1, most: 1, now: true},
		"multi":   {do: (*conn).multi, least: 1, most: 1, now: true, needs: true},
		"exec":    {do: (*conn).exec, least: 1, most: 1, now: true, needs: true},
		"discard": {do: (*conn).discard, least: 1, most: 1, now: true, needs: true},
		"unwatch": {do: func(c *conn, _ [][]byte) { c.simple("OK") }, least: 1, most: 1, needs: true},
	}
}

// refused has the commands that clients of counters send and that the door refuses,
// with the reason.
var refused = map[string]string{
	"decr":        "IDs only grow",
	"decrby":      "IDs only grow",
	"incrbyfloat": "IDs are whole numbers",
	"getset":      "a tag's next ID cannot be set; `march tag skip` raises it",
	"getdel":      "a tag is deleted with `march tag delete`",
	"del":         "a tag is deleted with `march tag delete`",
	"unlink":      "a tag is deleted with `march tag delete`",
	"expire":      "a tag has no time to live",
	"pexpire":     "a tag has no time to live",
	"expireat":    "a tag has no time to live",
	"pexpireat":   "a tag has no time to live",
	"setex":       "a tag has no time to live",
	"psetex":      "a tag has no time to live",
	"watch":       "a transaction here has no conditions",
	"eval":        "there are no scripts",
	"evalsha":     "there are no scripts",
	"flushall":    "a tag is deleted with `march tag delete`",
	"flushdb":     "a tag is deleted with `march tag delete`",
}

// longestName is longer than any command's name.
const longestName = 16

// command answers one command.
func (c *conn) command(args [][]byte) {
	var lower [longestName]byte
	n := copy(lower[:], args[0])
	for i := range n {
		if b := lower[i]; b >= 'A' && b <= 'Z' {
			lower[i] = b + 'a' - 'A'
		}
	}
	known, ok := c.door.commands[string(lower[:n])] // the compiler makes no string for this
	if len(args[0]) > longestName {
		ok = false
	}
	switch {
	case !ok:
		c.unknown(args, string(lower[:n]))
	case len(args) < known.least || len(args) > known.most:
		c.reject(fmt.Sprintf("ERR wrong number of arguments for '%s' command", string(lower[:n])))
	case known.needs && c.barred():
		c.reject(notLoggedIn)
	case c.queue != nil && !known.now:
		c.enqueue(args)
	default:
		bad := c.bad
		c.counts = false
		known.do(c, args)
		if c.bad == bad {
			c.ok++
		}
	}
}

// barred reports whether the caller must log in before anything else.
func (c *conn) barred() bool {
	return c.ctx == c.anonymous && !c.door.cfg.Open() && c.door.cfg.Barred(c.ctx)
}

// reject answers an error for a command that cannot be executed. A transaction then fails.
func (c *conn) reject(text string) {
	c.fail(text)
	if c.queue != nil {
		c.queue.failed = true
	}
}

// ofHTTP reports whether a command is a line of an HTTP request: its first one, of whatever method and version, or
// Host, which comes after that of a GET, a command here. Such a connection is closed without an answer, as Redis closes
// it: any page can have a browser send a body, whose lines would be commands.
func ofHTTP(args [][]byte, lower string) bool {
	return lower == "post" || lower == "host:" || bytes.HasPrefix(args[len(args)-1], []byte("HTTP/"))
}

func (c *conn) unknown(args [][]byte, lower string) {
	if ofHTTP(args, lower) {
		c.door.ofHTTP.Log(time.Now(), c.door.log.Warn, "redis: a request of HTTP came, and its connection is closed",
			"peer", c.accepted.RemoteAddr())
		c.quits = true
		return
	}
	if why, ok := refused[lower]; ok && len(args[0]) <= longestName {
		c.reject(fmt.Sprintf("ERR march: %s is not served: %s", strings.ToUpper(lower), why))
		return
	}
	const most = 128 // as Redis bounds it
	var b strings.Builder
	fmt.Fprintf(&b, "ERR unknown command '%.*s', with args beginning with: ", most, args[0])
	for _, a := range args[1:] {
		if b.Len() > 2*most {
			break
		}
		fmt.Fprintf(&b, "'%.*s' ", most, a)
	}
	c.reject(b.String())
}

// parseKey returns the tag of a key.
func (c *conn) parseKey(key []byte) (string, error) {
	if string(key) == c.key && c.key != "" { // the compiler makes no string for this
		return c.tag, nil
	}
	tag, err := foreign.Tag(string(key))
	if err != nil {
		return "", err
	}
	c.key, c.tag = string(key), string(tag)
	return c.tag, nil
}

// tagOf returns the tag of a key. It returns false after it has answered that the key is
// not valid.
func (c *conn) tagOf(key []byte) (string, bool) {
	tag, err := c.parseKey(key)
	if err != nil {
		c.fail(errorText(err))
	}
	return tag, err == nil
}

func (c *conn) incr(args [][]byte) {
	tag, ok := c.tagOf(args[1])
	if !ok {
		return
	}
	id, err := c.door.cfg.Next(c.ctx, tag)
	if err != nil {
		c.fail(errorText(err))
		return
	}
	c.counts = true
	c.number(id)
}

// isIncr reports whether a command takes one ID: INCR, or INCRBY with 1, which some clients send
// instead.
func isIncr(args [][]byte) bool {
	switch len(args) {
	case 2:
		return len(args[0]) == len("incr") && strings.EqualFold(string(args[0]), "incr")
	case 3:
		return string(args[2]) == "1" && len(args[0]) == len("incrby") && strings.EqualFold(string(args[0]), "incrby")
	}
	return false
}

// tryIncr answers a command if it takes one ID and the answer is there at once. Otherwise it
// does nothing and returns false.
func (c *conn) tryIncr(args [][]byte) bool {
	if !isIncr(args) {
		return false
	}
	tag, err := c.parseKey(args[1])
	if err != nil {
		return false
	}
	id, ok, err := c.door.cfg.TryNext(c.ctx, tag)
	switch {
	case err != nil:
		c.fail(errorText(err))
	case ok:
		c.ok++
		c.number(id)
	}
	return ok || err != nil
}

const notInteger = "ERR value is not an integer or out of range"

func (c *conn) incrBy(args [][]byte) {
	n, err := strconv.ParseInt(string(args[2]), 10, 64)
	switch {
	case err != nil:
		c.fail(notInteger)
		return
	case n == 1:
		c.incr(args)
		return
	case n < 1:
		c.fail(fmt.Sprintf("ERR march: INCRBY %d is not served: IDs only grow; allowed: 1 or more", n))
		return
	}
	tag, ok := c.tagOf(args[1])
	if !ok {
		return
	}
	first, err := c.door.cfg.NextRun(c.ctx, tag, n)
	if err != nil {
		c.fail(errorText(err))
		return
	}
	c.number(first + n - 1)
}

// peek returns the likely next ID, and whether the tag exists.
func (c *conn) peek(key []byte) (next int64, is bool, err error) {
	tag, err := foreign.Tag(string(key))
	if err != nil {
		return 0, false, nil // no tag has that name
	}
	next, err = c.door.cfg.Peek(c.ctx, string(tag))
	if err != nil && allocator.KindOf(err) == allocator.NotFound {
		return 0, false, nil
	}
	return next, err == nil, err
}

func (c *conn) get(args [][]byte) {
	switch next, is, err := c.peek(args[1]); {
	case err != nil:
		c.fail(errorText(err))
	case is:
		c.bulk(strconv.FormatInt(next, 10))
	default:
		c.null()
	}
}

func (c *conn) mget(args [][]byte) {
	c.array(len(args) - 1)
	for _, key := range args[1:] {
		if next, is, err := c.peek(key); err == nil && is {
			c.bulk(strconv.FormatInt(next, 10))
		} else {
			c.null() // MGET cannot return an error for one key
		}
	}
}

func (c *conn) exists(args [][]byte) {
	n := int64(0)
	for _, key := range args[1:] {
		_, is, err := c.peek(key)
		if err != nil {
			c.fail(errorText(err))
			return
		}
		if is {
			n++
		}
	}
	c.number(n)
}

// set answers SET KEY VALUE NX, which creates a tag.
func (c *conn) set(args [][]byte) {
	if len(args) != 4 || !strings.EqualFold(string(args[3]), "nx") {
		c.fail("ERR march: SET is served only as SET KEY NUMBER NX: a tag's next ID cannot be set; " +
			"`march tag skip` raises it")
		return
	}
	switch made, ok := c.create(args[1], args[2]); {
	case !ok:
	case made:
		c.simple("OK")
	default:
		c.null()
	}
}

func (c *conn) setNX(args [][]byte) {
	switch made, ok := c.create(args[1], args[2]); {
	case !ok:
	case made:
		c.number(1)
	default:
		c.number(0)
	}
}

// create creates a tag whose first ID is above value. ok is false after it has answered an
// error.
func (c *conn) create(key, value []byte) (made, ok bool) {
	v, err := strconv.ParseInt(string(value), 10, 64)
	if err != nil || v < 0 || v >= math.MaxInt64-1 {
		c.fail(notInteger + ": a tag's IDs begin at 0 or above")
		return false, false
	}
	tag, ok := c.tagOf(key)
	if !ok {
		return false, false
	}
	made, err = c.door.cfg.Create(c.ctx, tag, v+1)
	if err != nil {
		c.fail(errorText(err))
		return false, false
	}
	return made, true
}

// queue has the commands of a transaction. There is no rollback, as in Redis.
type queue struct {
	commands [][][]byte
	bytes    int
	failed   bool
}

// mostQueued bounds a transaction, in commands; its bytes are bounded by maxCommand.
const mostQueued = 1000

func (c *conn) multi([][]byte) {
	if c.queue != nil {
		c.fail("ERR MULTI calls can not be nested")
		return
	}
	c.queue = &queue{}
	c.simple("OK")
}

func (c *conn) enqueue(args [][]byte) {
	copied := make([][]byte, len(args)) // the buffer is reused
	for i, a := range args {
		copied[i] = append([]byte(nil), a...)
		c.queue.bytes += len(a) + 32
	}
	if len(c.queue.commands) >= mostQueued || c.queue.bytes > maxCommand {
		c.reject(fmt.Sprintf("ERR march: transaction too large; allowed: %d commands and %d bytes",
			mostQueued, maxCommand))
		return
	}
	c.queue.commands = append(c.queue.commands, copied)
	c.simple("QUEUED")
}

func (c *conn) exec([][]byte) {
	q := c.queue
	c.queue = nil
	switch {
	case q == nil:
		c.fail("ERR EXEC without MULTI")
	case q.failed:
		c.fail("EXECABORT Transaction discarded because of previous errors.")
	default:
		c.array(len(q.commands))
		for _, args := range q.commands {
			c.command(args)
		}
	}
}

func (c *conn) discard([][]byte) {
	if c.queue == nil {
		c.fail("ERR DISCARD without MULTI")
		return
	}
	c.queue = nil
	c.simple("OK")
}

// redisVersion is the version of Redis that the door reports: clients choose their
// commands by it.
const redisVersion = "7.0.15"

func (c *conn) ping(args [][]byte) {
	if len(args) == 1 {
		c.simple("PONG")
		return
	}
	c.bulk(string(args[1]))
}

func (c *conn) quit([][]byte) {
	c.simple("OK")
	c.quits = true
}

func (c *conn) reset([][]byte) {
	c.protocol, c.name, c.queue, c.ctx = 2, "", nil, c.anonymous
	c.simple("RESET")
}

// selects answers SELECT. There is only database 0: the same key in two databases
// would silently be one counter.
func (c *conn) selects(args [][]byte) {
	switch n, err := strconv.Atoi(string(args[1])); {
	case err != nil:
		c.fail(notInteger)
	case n != 0:
		c.fail("ERR DB index is out of range")
	default:
		c.simple("OK")
	}
}

func (c *conn) client(args [][]byte) {
	sub := strings.ToLower(string(args[1]))
	switch {
	case sub == "setname" && len(args) == 3:
		c.setName(string(args[2]))
	case sub == "getname" && len(args) == 2:
		if c.name == "" {
			c.null()
		} else {
			c.bulk(c.name)
		}
	case sub == "id" && len(args) == 2:
		c.number(c.id)
	case sub == "setinfo" && len(args) == 4, (sub == "no-evict" || sub == "no-touch") && len(args) == 3:
		c.simple("OK")
	case sub == "setname", sub == "getname", sub == "id", sub == "setinfo":
		c.fail(fmt.Sprintf("ERR wrong number of arguments for 'client|%s' command", sub))
	default:
		c.fail(fmt.Sprintf("ERR unknown subcommand '%.128s'. Try CLIENT HELP.", args[1]))
	}
}

func (c *conn) setName(name string) bool {
	for i := range len(name) {
		if name[i] < '!' || name[i] > '~' {
			c.fail("ERR Client names cannot contain spaces, newlines or special characters.")
			return false
		}
	}
	c.name = name
	c.simple("OK")
	return true
}

func (c *conn) config(args [][]byte) {
	if !strings.EqualFold(string(args[1]), "get") {
		c.fail("ERR march: CONFIG is served only as CONFIG GET, which finds nothing")
		return
	}
	c.pairs(0)
}

func (c *conn) commandInfo(args [][]byte) {
	switch {
	case len(args) == 1:
		c.array(0)
	case strings.EqualFold(string(args[1]), "count"):
		c.number(int64(len(c.door.commands)))
	case strings.EqualFold(string(args[1]), "docs"):
		c.pairs(0)
	default:
		c.array(0)
	}
}

// info answers loading:0, for which clients wait before they send commands.
func (c *conn) info([][]byte) {
	c.bulk("# Server\r\nredis_version:" + redisVersion + "\r\nredis_mode:standalone\r\nmarch_version:" +
		c.door.cfg.Version +
		"\r\n\r\n# Persistence\r\nloading:0\r\n\r\n# Replication\r\nrole:master\r\nconnected_slaves:0\r\n")
}

const (
	notLoggedIn = "NOAUTH Authentication required."
	noPassword  = "ERR AUTH <password> called without any password configured for the default user. " +
		"Are you sure your configuration is correct?"
	wrongPass   = "WRONGPASS invalid username-password pair or user is disabled."
	badProtocol = "ERR Protocol version is not an integer or out of range"
)

// auth answers AUTH [USER] TOKEN.
func (c *conn) auth(args [][]byte) {
	if len(args) == 2 && c.door.cfg.Open() {
		c.fail(noPassword)
		return
	}
	user := defaultUser
	if len(args) == 3 {
		user = string(args[1])
	}
	if ctx, ok := c.login(user, args[len(args)-1]); ok {
		c.ctx = ctx
		c.simple("OK")
	}
}

// defaultUser is the user of a Redis without users.
const defaultUser = "default"

// login returns the context of a token's subject. The user's name does not count, because
// the token proves one. Without a policy it answers as a Redis without passwords does. It
// returns false after it has answered an error.
func (c *conn) login(user string, token []byte) (context.Context, bool) {
	if c.door.cfg.Open() {
		if user != defaultUser {
			c.fail(wrongPass)
			return nil, false
		}
		return c.ctx, true
	}
	ctx, err := c.door.cfg.Login(c.anonymous, string(token))
	switch {
	case err == nil:
		return ctx, true
	case allocator.KindOf(err) == allocator.Unauthenticated:
		c.fail(wrongPass)
	default:
		c.fail(errorText(err))
	}
	return nil, false
}

// hello answers HELLO [2|3 [AUTH USER PASSWORD] [SETNAME NAME]].
func (c *conn) hello(args [][]byte) {
	protocol := c.protocol
	if len(args) > 1 {
		n, err := strconv.Atoi(string(args[1]))
		switch {
		case err != nil:
			c.fail(badProtocol)
			return
		case n != 2 && n != 3:
			c.fail("NOPROTO unsupported protocol version")
			return
		}
		protocol = n
	}
	name, ctx := c.name, c.ctx
	for at := 2; at < len(args); {
		switch option := strings.ToLower(string(args[at])); {
		case option == "auth" && at+2 < len(args):
			var ok bool
			if ctx, ok = c.login(string(args[at+1]), args[at+2]); !ok {
				return
			}
			at += 3
		case option == "setname" && at+1 < len(args):
			name = string(args[at+1])
			at += 2
		default:
			c.fail(fmt.Sprintf("ERR Syntax error in HELLO option '%.128s'", args[at]))
			return
		}
	}
	if ctx == c.ctx && c.barred() {
		c.fail("NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH " +
			"<user> <pass> option can be used to authenticate the client and select the RESP protocol version at the " +
			"same time")
		return
	}
	if name != c.name {
		before := len(c.out)
		if !c.setName(name) {
			return
		}
		c.out = c.out[:before] // remove the OK of AUTH
	}
	c.protocol, c.ctx = protocol, ctx
	c.pairs(7)
	for _, p := range [][2]string{{"server", "redis"}, {"version", redisVersion}} {
		c.bulk(p[0])
		c.bulk(p[1])
	}
	c.bulk("proto")
	c.number(int64(c.protocol))
	c.bulk("id")
	c.number(c.id)
	for _, p := range [][2]string{{"mode", "standalone"}, {"role", "master"}} {
		c.bulk(p[0])
		c.bulk(p[1])
	}
	c.bulk("modules")
	c.array(0)
}
