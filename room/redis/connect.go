package redis

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/march-id/march/allocator"
)

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
	if len(args) == 2 && c.door.cfg.Login == nil {
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
	if c.door.cfg.Login == nil {
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
