package dev.proxima.clients;

import com.alibaba.nacos.api.NacosFactory;
import com.alibaba.nacos.api.config.ConfigService;
import com.alibaba.nacos.api.config.listener.AbstractListener;
import com.alibaba.nacos.api.naming.NamingService;
import com.alibaba.nacos.api.naming.listener.NamingEvent;
import com.alibaba.nacos.api.naming.pojo.Instance;
import java.util.Collection;
import java.util.Properties;

/** The client of Nacos. */
final class NacosClient implements Main.Client {
    private static final String GROUP = "DEFAULT_GROUP";

    private final NamingService naming;
    private final ConfigService config;

    NacosClient(String address) throws Exception {
        Properties p = new Properties();
        p.put("serverAddr", address);
        naming = NacosFactory.createNamingService(p);
        config = NacosFactory.createConfigService(p);
    }

    @Override
    public String run(String command, String... words) throws Exception {
        switch (command) {
            case "register", "persist" -> {
                Instance in = new Instance();
                in.setIp(words[1]);
                in.setPort(Integer.parseInt(words[2]));
                in.setEphemeral(command.equals("register"));
                naming.registerInstance(words[0], in);
                return "";
            }
            case "deregister" -> {
                naming.deregisterInstance(words[0], words[1], Integer.parseInt(words[2]));
                return "";
            }
            case "list" -> {
                return addresses(naming.selectInstances(words[0], true, false));
            }
            case "watch" -> {
                naming.subscribe(words[0], e -> Main.event(words[0] + " " + addresses(((NamingEvent) e).getInstances())));
                return "";
            }
            case "publish" -> {
                return String.valueOf(config.publishConfig(words[0], GROUP, words[1]));
            }
            case "get" -> {
                return String.valueOf(config.getConfig(words[0], GROUP, 3000));
            }
            case "remove" -> {
                return String.valueOf(config.removeConfig(words[0], GROUP));
            }
            case "listen" -> {
                config.addListener(words[0], GROUP, new AbstractListener() {
                    @Override
                    public void receiveConfigInfo(String content) {
                        Main.event(words[0] + " " + content);
                    }
                });
                return "";
            }
            default -> throw new IllegalArgumentException(command);
        }
    }

    private static String addresses(Collection<Instance> list) {
        return Main.join(list.stream().map(i -> i.getIp() + ":" + i.getPort()).toList());
    }

    @Override
    public void close() throws Exception {
        naming.shutDown();
        config.shutDown();
    }
}
