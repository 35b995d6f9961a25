# What the examples have in common; they source it. It makes a folder, $dir, whose processes, $pids, end with the script.
dir=$(mktemp -d)
pids=()
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

end() {
	local i
	for ((i = ${#pids[@]} - 1; i >= 0; i--)); do # callers first
		kill "${pids[i]}" 2>/dev/null || true
		wait "${pids[i]}" 2>/dev/null || true
	done
	rm -rf "$dir"
}
trap end EXIT
trap 'exit 130' INT TERM

# need PROGRAM FROM: end with what is missing.
need() {
	command -v "$1" >/dev/null && return
	echo "$1 is missing: $2" >&2
	exit 1
}

# free_port prints a port of loopback below those of outgoing connections, which nothing listens at, nor 1000 above.
free_port() {
	local p
	for _ in $(seq 100); do
		p=$((20000 + RANDOM % 10000))
		if ! (exec 3<>"/dev/tcp/127.0.0.1/$p") 2>/dev/null && ! (exec 3<>"/dev/tcp/127.0.0.1/$((p + 1000))") 2>/dev/null; then
			echo "$p"
			return
		fi
	done
	echo "no port is free" >&2
	return 1
}

# control_plane PROTOCOL starts one, of $PROXIMA or built here; $port is that of the protocol.
control_plane() {
	local proxima=${PROXIMA:-} api
	if [ -z "$proxima" ]; then
		need go "https://go.dev/dl (version 1.26), or set PROXIMA to the program"
		echo "building proxima, which takes minutes the first time" >&2
		(cd "$root" && CGO_ENABLED=0 go build -o "$dir/proxima" ./cmd/proxima)
		proxima=$dir/proxima
	fi
	port=$(free_port)
	api=$(free_port)
	"$proxima" control-plane --data-dir "$dir/data" --api-address "127.0.0.1:$api" --grpc-port 0 --xds-port 0 "--$1-port" "$port" >"$dir/control-plane.log" 2>&1 &
	pids+=($!)
	for _ in $(seq 300); do
		if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then return; fi
		kill -0 "$!" 2>/dev/null || break
		sleep 0.1
	done
	tail -n 20 "$dir/control-plane.log" >&2
	exit 1
}

# await_calls FILE [CALLS] waits until a file has CALLS lines of calls that succeeded; without a number for ever.
await_calls() {
	local count=${2:-} began=$SECONDS # building may have taken minutes
	while [ -z "$count" ] || [ "$(grep -c '^call [0-9]*: ' "$1" || true)" -lt "$count" ]; do
		if [ -n "$count" ] && [ $((SECONDS - began)) -gt 240 ]; then
			echo "there were not $count calls" >&2
			tail -n 20 "$dir"/*.log >&2
			exit 1
		fi
		sleep 0.5
	done
	echo "$count calls succeeded"
}
