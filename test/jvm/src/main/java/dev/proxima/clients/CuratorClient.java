package dev.proxima.clients;

import java.util.Collection;
import java.util.HashMap;
import java.util.Map;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.state.ConnectionState;
import org.apache.curator.retry.ExponentialBackoffRetry;
import org.apache.curator.x.discovery.ServiceCache;
import org.apache.curator.x.discovery.ServiceDiscovery;
import org.apache.curator.x.discovery.ServiceDiscoveryBuilder;
import org.apache.curator.x.discovery.ServiceInstance;
import org.apache.curator.x.discovery.details.ServiceCacheListener;

/** Service discovery of Curator, on ZooKeeper. */
final class CuratorClient implements Main.Client {
    private final CuratorFramework framework;
    private final ServiceDiscovery<Object> discovery;
    private final Map<String, ServiceInstance<Object>> registered = new HashMap<>();

    CuratorClient(String address) throws Exception {
        framework = CuratorFrameworkFactory.newClient(address, 10_000, 5_000, new ExponentialBackoffRetry(100, 10));
        framework.start();
        framework.blockUntilConnected();
        discovery = ServiceDiscoveryBuilder.builder(Object.class).client(framework).basePath("/services").build();
        discovery.start();
    }

    @Override
    public String run(String command, String... words) throws Exception {
        switch (command) {
            case "register" -> {
                ServiceInstance<Object> in = ServiceInstance.builder().name(words[0]).id(words[1] + ":" + words[2])
                        .address(words[1]).port(Integer.parseInt(words[2])).build();
                discovery.registerService(in);
                registered.put(in.getName() + " " + in.getId(), in);
                return "";
            }
            case "deregister" -> {
                discovery.unregisterService(registered.remove(words[0] + " " + words[1] + ":" + words[2]));
                return "";
            }
            case "list" -> {
                return addresses(discovery.queryForInstances(words[0]));
            }
            case "names" -> {
                return Main.join(discovery.queryForNames());
            }
            case "watch" -> {
                ServiceCache<Object> cache = discovery.serviceCacheBuilder().name(words[0]).build();
                cache.addListener(new ServiceCacheListener() {
                    @Override
                    public void cacheChanged() {
                        Main.event(words[0] + " " + addresses(cache.getInstances()));
                    }

                    @Override
                    public void stateChanged(CuratorFramework client, ConnectionState state) {}
                });
                cache.start();
                Main.event(words[0] + " " + addresses(cache.getInstances()));
                return "";
            }
            default -> throw new IllegalArgumentException(command);
        }
    }

    private static String addresses(Collection<ServiceInstance<Object>> list) {
        return Main.join(list.stream().map(i -> i.getAddress() + ":" + i.getPort()).toList());
    }

    @Override
    public void close() throws Exception {
        discovery.close();
        framework.close();
    }
}
