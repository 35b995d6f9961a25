package shop;

import com.google.protobuf.StringValue;
import java.util.Map;
import java.util.TreeMap;
import java.util.function.UnaryOperator;
import org.apache.dubbo.config.ApplicationConfig;
import org.apache.dubbo.config.ProtocolConfig;
import org.apache.dubbo.config.ReferenceConfig;
import org.apache.dubbo.config.RegistryConfig;
import org.apache.dubbo.config.ServiceConfig;
import org.apache.dubbo.config.bootstrap.DubboBootstrap;

/**
 * Application is a provider or a consumer of Dubbo. Its arguments are KEY=VALUE: role (provider or consumer), name,
 * registry (an address such as nacos://127.0.0.1:8848), mode (instance, interface or all; empty: the default of
 * Dubbo), protocol (tri or dubbo), address, port and reply of a provider, metadata (remote; empty: local). A consumer
 * calls again and again, and writes a line for each call.
 */
public final class Application {
    private final Map<String, String> options = new TreeMap<>();

    private Application(String[] args) {
        for (String arg : args) {
            String[] pair = arg.split("=", 2);
            options.put(pair[0], pair[1]);
        }
    }

    private String get(String key, String otherwise) {
        String value = options.get(key);
        return value == null || value.isEmpty() ? otherwise : value;
    }

    private boolean plain() {
        return get("protocol", "tri").equals("dubbo");
    }

    public static void main(String[] args) throws InterruptedException {
        new Application(args).run();
    }

    private void run() throws InterruptedException {
        ApplicationConfig application = new ApplicationConfig(get("name", "java"));
        application.setQosEnable(false);
        application.setMetadataType(get("metadata", "local"));
        if (options.containsKey("mode")) {
            application.setRegisterMode(get("mode", "all"));
        }
        RegistryConfig registry = new RegistryConfig(get("registry", ""));
        DubboBootstrap bootstrap = DubboBootstrap.getInstance().application(application).registry(registry);
        if (get("role", "").equals("provider")) {
            provide(bootstrap);
        } else {
            consume(bootstrap);
        }
    }

    private void provide(DubboBootstrap bootstrap) {
        ProtocolConfig protocol = new ProtocolConfig(get("protocol", "tri"), Integer.parseInt(get("port", "0")));
        protocol.setHost(get("address", "127.0.0.1"));
        String reply = get("reply", "") + " greets ";
        if (plain()) {
            ServiceConfig<PlainGreeter> service = new ServiceConfig<>();
            service.setInterface(PlainGreeter.class);
            service.setRef(name -> reply + name);
            bootstrap.protocol(protocol).service(service).start().await();
        } else {
            ServiceConfig<Greeter> service = new ServiceConfig<>();
            service.setInterface(Greeter.class);
            service.setRef(name -> StringValue.of(reply + name.getValue()));
            bootstrap.protocol(protocol).service(service).start().await();
        }
    }

    private void consume(DubboBootstrap bootstrap) throws InterruptedException {
        UnaryOperator<String> call;
        if (plain()) {
            ReferenceConfig<PlainGreeter> reference = reference(PlainGreeter.class);
            bootstrap.reference(reference).start();
            PlainGreeter greeter = reference.get();
            call = greeter::Greet;
        } else {
            ReferenceConfig<Greeter> reference = reference(Greeter.class);
            bootstrap.reference(reference).start();
            Greeter greeter = reference.get();
            call = name -> greeter.Greet(StringValue.of(name)).getValue();
        }
        for (int n = 0; ; n++) {
            String line;
            try {
                line = call.apply(Integer.toString(n));
            } catch (RuntimeException e) {
                line = "failed: " + String.valueOf(e.getMessage()).replace('\n', ' ');
            }
            System.out.println("call: " + line);
            Thread.sleep(20); // the pace of the load
        }
    }

    private <T> ReferenceConfig<T> reference(Class<T> type) {
        ReferenceConfig<T> reference = new ReferenceConfig<>();
        reference.setInterface(type);
        reference.setProtocol(get("protocol", "tri"));
        reference.setCheck(false);
        reference.setTimeout(3000);
        reference.setRetries(0);
        return reference;
    }
}
