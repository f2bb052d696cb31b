package main

import (
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// etcd means to give up a connection between members on which nothing has arrived for five seconds.
// It sets this limit as Dial of an http.Transport whose DialContext is set as well, which takes
// precedence (client/pkg/v3/transport, 3.5.16 to 3.7.3): the limit is never in force. A member whose network
// was cut without a word keeps its connections, then, and after the cut the kernel sends what waits
// only when its back-off ends: as late again as the cut was long, up to two minutes. Meanwhile the
// member hears the others and is not heard, and can neither read nor write.
//
// So the kernel is told the limit, for every connection of this process.
const (
	silence       = 5 * time.Second // etcd's own limit
	probeAfter    = 2 * time.Second
	probeInterval = time.Second
	lookInterval  = time.Second
)

func init() { go limitConnections() }

// limitConnections has connections end on which the other side acknowledges nothing, neither data nor
// probes. There is no hook for connections that etcd opens, so it looks for new ones.
func limitConnections() {
	for {
		if entries, err := os.ReadDir("/proc/self/fd"); err == nil {
			for _, entry := range entries {
				if descriptor, err := strconv.Atoi(entry.Name()); err == nil {
					limit(descriptor)
				}
			}
		}
		time.Sleep(lookInterval)
	}
}

// limit sets the options of a connection; other descriptors refuse the first call. One that is closed and
// used again meanwhile is another connection of this process, and gets what it would get anyway.
func limit(descriptor int) {
	idle, err := unix.GetsockoptInt(descriptor, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE)
	if err != nil || idle == int(probeAfter.Seconds()) {
		return
	}
	for _, option := range []struct{ level, name, value int }{
		{unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(silence.Milliseconds())},
		{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, int(probeInterval.Seconds())},
		{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
		{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, int(probeAfter.Seconds())},
	} {
		if unix.SetsockoptInt(descriptor, option.level, option.name, option.value) != nil {
			return
		}
	}
}
