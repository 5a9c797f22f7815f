package ledgertest

import "time"

// began is when this process began: later than all times in bubbles.
var began = time.Now().UnixNano()

// InBubble reports whether the caller is in a bubble of testing/synctest, whose clock begins in
// the year 2000. There a real etcd, like each real socket, would stop the clock.
func InBubble() bool { return time.Now().UnixNano() < began }
