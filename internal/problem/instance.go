package problem

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/journal"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/timeid"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// Instance makes the problems of one instance.
type Instance struct {
	Room allocator.Room
	Name allocator.Instance
}

func (i Instance) id() string { return string(i.Room) + "/" + string(i.Name) }

// args names the instance to a command.
func (i Instance) args() string { return string(i.Room) + " " + string(i.Name) }

// of returns a problem of the instance. The format is of the text after its name.
func (i Instance) of(kind marchv1.ProblemKind, since time.Time, format string, args ...any) *marchv1.Problem {
	return &marchv1.Problem{
		Kind: kind, Of: i.id(), What: "instance " + i.id() + " " + fmt.Sprintf(format, args...), Since: Stamp(since),
	}
}

// NoRights says which rights the instance's user lacks in etcd.
func (i Instance) NoRights(missing []store.Right) *marchv1.Problem {
	texts := make([]string, len(missing))
	for k, right := range missing {
		texts[k] = right.String()
	}
	p := i.of(marchv1.ProblemKind_PROBLEM_KIND_ETCD_RIGHTS, time.Time{}, "lacks rights in etcd: its user may not %s",
		strings.Join(texts, ", nor "))
	p.Remedy, p.Command = "Give its role these rights.", "march etcd roles "+string(i.Room)
	return p
}

// Barred says that a recover has barred the instance from leasing.
func (i Instance) Barred(by string, since *timestamppb.Timestamp) *marchv1.Problem {
	p := i.of(marchv1.ProblemKind_PROBLEM_KIND_BARRED, time.Time{}, "is barred by the recover of %s", by)
	p.Since, p.Remedy, p.Command = since, "It leases again when that recover has ended. "+
		"If the recover was interrupted, run it again.", "march recover"
	return p
}

// Unconfirmed says that the instance started without its journal, which is required.
func (i Instance) Unconfirmed(started time.Time) *marchv1.Problem {
	p := i.of(marchv1.ProblemKind_PROBLEM_KIND_UNCONFIRMED, started,
		"started without its journal, which is required, and leases nothing")
	p.Remedy = "If etcd has all leases of its predecessor, confirm the instance. Otherwise recover."
	p.Command = "march instance confirm " + i.args()
	return p
}

// Silent says that the instance sends no heartbeats. forgotten is when a console
// forgets it, zero if none does.
func (i Instance) Silent(since, forgotten time.Time) *marchv1.Problem {
	p := i.of(marchv1.ProblemKind_PROBLEM_KIND_SILENT, since, "is silent")
	p.Until, p.Remedy, p.Command = Stamp(forgotten), "Start it again. If it is gone for good, forget it.",
		"march instance forget "+i.args()
	return p
}

// NoHeartbeats says that the instance answers, but sends no heartbeats.
func (i Instance) NoHeartbeats(since time.Time) *marchv1.Problem {
	p := i.of(marchv1.ProblemKind_PROBLEM_KIND_SILENT, since, "sends no heartbeats, but answers")
	p.Remedy = "It runs: do not forget it. See its other problems and its log for why it writes nothing to etcd."
	return p
}

// NoAnswer says that the instance sends heartbeats, but does not answer a console.
func (i Instance) NoAnswer(address string, since time.Time) *marchv1.Problem {
	p := i.of(marchv1.ProblemKind_PROBLEM_KIND_NO_ANSWER, since, "does not answer at %s", address)
	p.Remedy = "It sent heartbeats until a moment ago, so it runs or has just ended: check its process, " +
		"the network from this console to it, and its certificate."
	return p
}

// EtcdAway says that the instance cannot reach etcd, and why if err is not nil.
func (i Instance) EtcdAway(err error, since time.Time) *marchv1.Problem {
	p := i.of(marchv1.ProblemKind_PROBLEM_KIND_ETCD_AWAY, since, "does not reach etcd, and leases nothing")
	if err != nil {
		p.What += ": " + err.Error()
	}
	p.Remedy, p.Command = "Check the network from it to etcd, and etcd itself.", "etcdctl endpoint health --cluster"
	return p
}

// NotReady says that the instance is not ready, and why.
func (i Instance) NotReady(why string, since time.Time) *marchv1.Problem {
	p := i.of(marchv1.ProblemKind_PROBLEM_KIND_NOT_READY, since, "is not ready: %s", why)
	p.Remedy = "Send its callers to other instances of the room until it can lease."
	return p
}

// NoTimeOrdered says that the instance issues no IDs of some tag of kind time, and why.
func (i Instance) NoTimeOrdered(err error, since time.Time) *marchv1.Problem {
	p := i.of(marchv1.ProblemKind_PROBLEM_KIND_NOT_READY, since, "issues no time-ordered IDs: %v", err)
	p.Remedy, p.Command = "Its counters go on. See which workers its room has, and in use where.",
		"march worker list --room "+string(i.Room)
	if back, is := errors.AsType[*timeid.RollbackError](err); is {
		p.Remedy = fmt.Sprintf("Its counters go on. Its clock went back by %v: it issues again when the clock has "+
			"caught up, or at once after a restart.", time.Duration(back.Last-back.Now)*time.Millisecond)
		p.Command = ""
	}
	return p
}

// NoLease says that the instance leases no tag because of err. damage returns what
// an unreadable key stops.
func (i Instance) NoLease(err error, since time.Time, damage func(key string) record.Damage) *marchv1.Problem {
	p := i.of(marchv1.ProblemKind_PROBLEM_KIND_NO_LEASE, since, "leases nothing: %v", err)
	p.Remedy = "See the instance's log."
	if key, is := errors.AsType[*record.KeyError](err); is {
		p = Unreadable(*key, damage(key.Key))
		p.Since = Stamp(since)
		return p
	}
	if errors.Is(err, store.ErrNoSpace) {
		return EtcdFull(since)
	}
	if unusable, is := errors.AsType[*ledger.UnusableError](err); is {
		p = Unusable(unusable.Error())
		p.Since = Stamp(since)
	} else if bare, is := errors.AsType[*ledger.UnconfirmedError](err); is {
		p = Instance{bare.Room, bare.Name}.Unconfirmed(since)
	} else if unwritable, is := errors.AsType[*journal.UnwritableError](err); is {
		p = i.of(marchv1.ProblemKind_PROBLEM_KIND_JOURNAL, unwritable.Since,
			"leases nothing: its journal %s cannot be written: %v", unwritable.Path, unwritable.Err)
		p.Remedy = sentence(unwritable.Remedy())
	} else if other, is := errors.AsType[*record.OtherClusterError](err); is {
		p = i.of(marchv1.ProblemKind_PROBLEM_KIND_FOREIGN_ETCD, since, "leases nothing: %s", other.Answered())
		p.Remedy, p.Command = "Check its --etcd. If etcd was restored, recover.", "march recover"
	} else if kind := allocator.KindOf(err); kind == allocator.Unauthenticated || kind == allocator.Denied {
		p.Remedy, p.Command = "Check its --etcd-user and --etcd-password-file, and what that user may do in etcd.",
			"march etcd roles "+string(i.Room)
	} else if kind == allocator.WentBack {
		p.Remedy, p.Command = "If etcd was restored, recover.", "march recover"
	}
	return p
}

// Insecure says that other machines reach a server that has no TLS or no identities. who
// names the server in a text, of in the list of problems.
func Insecure(who, of, why string) *marchv1.Problem {
	return &marchv1.Problem{
		Kind: marchv1.ProblemKind_PROBLEM_KIND_INSECURE, Of: of, What: who + " is insecure: " + why,
		Remedy: "Give it a certificate and a policy, then take --insecure away.",
	}
}

// Certificate says that the files of a server's certificate cannot be used since they were
// replaced.
func Certificate(who, of string, err error) *marchv1.Problem {
	return &marchv1.Problem{
		Kind: marchv1.ProblemKind_PROBLEM_KIND_CERTIFICATE, Of: of,
		What:   who + " goes on with its old certificates: " + err.Error(),
		Remedy: "Mend the files; they are read again within seconds.",
	}
}

// Safety lists what is wrong with a server's TLS. insecure is why it is insecure, empty if it
// is not; broken why its certificates' files cannot be used, nil if they can.
func Safety(who, of, insecure string, broken error) (list []*marchv1.Problem) {
	if insecure != "" {
		list = append(list, Insecure(who, of, insecure))
	}
	if broken != nil {
		list = append(list, Certificate(who, of, broken))
	}
	return list
}
