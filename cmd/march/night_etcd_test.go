package main

import (
	"fmt"
	"testing"

	"github.com/march-id/march/internal/programs"
)

// TestNightAlerts says that TestNight did not ask which alerts fire, where it did not.
func TestNightAlerts(t *testing.T) {
	programs.OnlyInAll(t, "of which alerts fire")
	programs.Find(t, "promtool")
}

// TestNightEtcd breaks a real etcd of three members, and runs the lines of etcdctl that TestNight knows as the next
// step, as March prints them: those that mend do, and those that look show which member it is.
func TestNightEtcd(t *testing.T) {
	programs.OnlyInAll(t, "of lines of etcdctl that a problem names")
	t.Parallel()
	s := newShell(t, etcdPrograms(t))
	s.run(fmt.Sprintf("base=%d\n", s.base))
	s.run(nightEtcd)
	for _, fault := range []struct{ breaks, shown, command, mends string }{
		{"end 3\n", "a member of etcd does not answer", "etcdctl endpoint status --write-out=table",
			"fails looks; answered 1 2; failed 3; member 3; well\n"},
		{"end 2; end 3\n", "etcd does not answer this console: 1 of 3 members answers, not ",
			"etcdctl endpoint status --write-out=table",
			"fails looks; answered 1; failed 2 3; member 2; member 3; well\n"},
		{fillHistory, "etcd is full, and takes no writes",
			"etcdctl compact REVISION; etcdctl defrag --cluster && etcdctl alarm disarm",
			"looks; well; march id next order; etcdctl --endpoints=$etcd put junk <megabyte\n"},
	} {
		s.run(fault.breaks)
		s.run(fmt.Sprintf("named %q %q\n", fault.shown, fault.command))
		s.run(fault.mends)
	}
	// Of a slow etcd, which nothing here makes: how long each member takes.
	s.run(fmt.Sprintf("next='%s'\n", "etcdctl endpoint health --cluster") +
		`next="etcdctl --endpoints=$etcd ${next#etcdctl }"; looks; [[ $(grep -c 'took = ' looked) = 3 ]]` + "\n")
}

const fillHistory = `until ! etcdctl --endpoints=$etcd put junk <megabyte >put.log 2>&1; do :; done
grep 'database space exceeded' put.log
`

// nightEtcd starts three members, a console and an instance. The shell ends where a line of it fails.
const nightEtcd = `set -e
etcd=127.0.0.1:$((base+61)),127.0.0.1:$((base+62)),127.0.0.1:$((base+63))
all=m1=http://127.0.0.1:$((base+71)),m2=http://127.0.0.1:$((base+72)),m3=http://127.0.0.1:$((base+73))
member() {
	local client=http://127.0.0.1:$((base+60+$1)) peer=http://127.0.0.1:$((base+70+$1))
	etcd --name m$1 --data-dir m$1 --listen-client-urls $client --advertise-client-urls $client \
		--listen-peer-urls $peer --initial-advertise-peer-urls $peer --initial-cluster $all \
		--quota-backend-bytes 16000000 >>m$1.log 2>&1 &
	pids[$1]=$!
}
end() { kill -9 ${pids[$1]}; wait ${pids[$1]} 2>/dev/null || true; }
eventually() {
	for _ in $(seq 1200); do if "$@"; then return; fi; sleep .1; done
	echo "never: $*"; march status; false
}
says() { march status >status 2>&1 || true; grep -q "$1" status; }
# named waits for a problem, and sets next to the command that is named for it; without its endpoints it is this one.
named() {
	eventually says "$1"
	next=$(sed -n 's/.*Next: .\(.*\).$/\1/p' status)
	echo "next: $next"
	[[ $(sed 's/ --endpoints=[^ ]*//g; s/compact [0-9]*/compact REVISION/' <<<"$next") = "$2" ]]
}
nothing() { march status >status 2>&1 && ! grep -q Next: status; }
well() { eventually nothing; }
# looks runs it as it is printed.
looks() { local code=0; sh -c "$next" >looked 2>&1 || code=$?; cat looked; return $code; }
fails() { if "$@"; then return 1; fi; }
answered() { for k in "$@"; do grep -q ":$((base+60+k)) " looked; done; }
failed() { for k in "$@"; do grep -q "endpoint 127.0.0.1:$((base+60+k))" looked; done; }
head -c 1000000 /dev/zero | tr '\0' x >megabyte
echo '{"boundary":"100","rooms":{"a":{"lower":"0","upper":"100"}}}' >layout.json
for k in 1 2 3; do member $k; done
march console --etcd $etcd --grpc $MARCH_CONSOLE --http 127.0.0.1:0 >console.log 2>&1 &
eventually march layout init layout.json
march room a --name one --etcd $etcd --grpc $MARCH_ROOM --http 127.0.0.1:0 >room.log 2>&1 &
eventually march tag create order
eventually march id next order
well
`
