# Run by systemd, as root. Its last line says that all went well.
fail() {
	echo "FAILED: $*"
	for unit in control-plane node ingress egress; do
		systemctl status --no-pager --lines=0 proxima-$unit || true
	done
	cat /run/*.log || true
	exit 1
}
# await CONDITION, for 60 s at most.
await() {
	tries=0
	until sh -c "$*" >/dev/null 2>&1; do
		tries=$((tries + 1))
		[ $tries -lt 300 ] || fail "$*"
		sleep 0.2
	done
}
for unit in control-plane node ingress egress; do
	mkdir -p /run/systemd/system/proxima-$unit.service.d
	printf '[Service]\nStandardOutput=append:/run/%s.log\nStandardError=append:/run/%s.log\n' $unit $unit >/run/systemd/system/proxima-$unit.service.d/log.conf
done
systemctl daemon-reload

sed -i 's/^PROXIMA_API_ADDRESS=.*/PROXIMA_API_ADDRESS=10.77.0.1:6443/' /etc/proxima/control-plane.env
systemctl start proxima-control-plane || fail start
await curl -sfk https://10.77.0.1:6443/readyz
# expect UNIT USER CAPABILITIES, the bounding set of its process.
expect() {
	pid=$(systemctl show -P MainPID "$1")
	is="$(stat -c %U /proc/"$pid") $(sed -n 's/^CapBnd:\t//p' /proc/"$pid"/status)"
	echo "$1: $is"
	[ "$is" = "$2 $3" ] || fail "$1 is to run as $2 with the capabilities $3"
}
expect proxima-control-plane proxima 0000000000000000
stat -c '%n %U %A' /var/lib/proxima/pki /var/lib/proxima/store.db /var/lib/proxima/kubeconfig

for name in host-7 ingress-1 egress-1; do
	proxima token create --kind node --name $name >/run/$name.token || fail token
done
install -m 0600 /run/host-7.token /etc/proxima/node.token
printf 'PROXIMA_SERVER=10.77.0.1:6443\nPROXIMA_TOKEN_FILE=/etc/proxima/node.token\nPROXIMA_NODE_NAME=host-7\n' >>/etc/proxima/node.env
systemctl start proxima-node || fail start
await "proxima get nodes | grep -q 'host-7 .*Ready'"
# NET_BIND_SERVICE, NET_ADMIN, NET_RAW and SYS_MODULE (linux/capability.h).
expect proxima-node root 0000000000013400
for mode in userspace iptables nftables; do
	sed -i "/^PROXIMA_MODE=/d" /etc/proxima/node.env
	echo PROXIMA_MODE=$mode >>/etc/proxima/node.env
	systemctl restart proxima-node
	await "proxima node dump | grep -q 'mode $mode'"
	await "curl -sfk --max-time 2 https://10.96.0.1/readyz"
	echo "agent: mode $mode serves"
done

for gateway in ingress egress; do
	install -m 0600 -o proxima -g proxima /run/$gateway-1.token /etc/proxima/$gateway.token
	printf 'PROXIMA_SERVER=10.77.0.1:6443\nPROXIMA_TOKEN_FILE=/etc/proxima/%s.token\nPROXIMA_NODE_NAME=%s-1\n' $gateway $gateway >>/etc/proxima/$gateway.env
	systemctl start proxima-$gateway || fail start
	await "grep -q '^ready .*node=$gateway-1' /run/$gateway.log"
	expect proxima-$gateway proxima 0000000000000000
	stat -c '%n %U %A' /var/lib/proxima-$gateway
done
proxima status
proxima doctor || true

# However often a unit ends, it is started again: systemd's own limit is 5 times in 10 s.
for i in 1 2 3 4 5 6 7; do
	kill -KILL "$(systemctl show -P MainPID proxima-egress)"
	await "[ \$(systemctl show -P NRestarts proxima-egress) = $i ] && systemctl is-active proxima-egress"
done
systemctl restart proxima-egress

# An upgrade restarts what runs.
before=$(systemctl show -P MainPID proxima-control-plane)
dpkg -i /tmp/proxima.deb
await "[ \$(systemctl show -P MainPID proxima-control-plane) != $before ]"
await curl -sfk https://10.77.0.1:6443/readyz
await "curl -sfk --max-time 2 https://10.96.0.1/readyz"
for unit in control-plane node ingress egress; do
	systemctl is-active --quiet proxima-$unit || fail "$unit is not active after the upgrade"
done
[ "$(systemctl show -P NRestarts proxima-control-plane proxima-node proxima-ingress proxima-egress | xargs)" = "0 0 0 0" ] || fail "units ended by themselves"

# A removal stops what runs, and removes the agent's rules.
nft list ruleset | grep -q proxima || fail "no rules of the agent"
dpkg -r proxima
if nft list ruleset | grep -q proxima; then fail "rules of the agent are left"; fi
for unit in control-plane node ingress egress; do
	if systemctl is-active --quiet proxima-$unit; then fail "$unit is active after the removal"; fi
done
[ -f /var/lib/proxima/store.db ] || fail "the state is gone"
dpkg -P proxima
if [ -e /var/lib/proxima ]; then fail "the state is not gone"; fi
echo "all units served"
