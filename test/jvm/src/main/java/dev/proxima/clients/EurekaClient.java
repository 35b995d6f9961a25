package dev.proxima.clients;

import java.util.Map;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.boot.web.servlet.context.ServletWebServerApplicationContext;
import org.springframework.cloud.client.discovery.DiscoveryClient;
import org.springframework.cloud.client.loadbalancer.LoadBalanced;
import org.springframework.context.annotation.Bean;
import org.springframework.core.env.Environment;
import org.springframework.web.bind.annotation.GetMapping;
import org.springframework.web.bind.annotation.RestController;
import org.springframework.web.client.RestTemplate;

/** An application of Spring Cloud that registers in Eureka, and calls others through its load balancer. */
final class EurekaClient implements Main.Client {
    private final ServletWebServerApplicationContext context;

    EurekaClient(String url, String name) {
        SpringApplication app = new SpringApplication(Application.class);
        app.setDefaultProperties(Map.ofEntries(
                Map.entry("spring.application.name", name), Map.entry("server.port", "0"), Map.entry("server.address", "127.0.0.1"),
                Map.entry("eureka.client.service-url.defaultZone", url),
                Map.entry("eureka.instance.prefer-ip-address", "true"), Map.entry("eureka.instance.ip-address", "127.0.0.1"),
                // What a user sets to see changes sooner; the protocol is the same.
                Map.entry("eureka.client.registry-fetch-interval-seconds", "1"),
                Map.entry("eureka.instance.lease-renewal-interval-in-seconds", "2"),
                Map.entry("spring.cloud.loadbalancer.cache.enabled", "false"),
                Map.entry("spring.main.banner-mode", "off")));
        context = (ServletWebServerApplicationContext) app.run();
    }

    @Override
    public String run(String command, String... words) {
        switch (command) {
            case "port" -> {
                return String.valueOf(context.getWebServer().getPort());
            }
            case "list" -> {
                return Main.join(context.getBean(DiscoveryClient.class).getInstances(words[0]).stream()
                        .map(i -> i.getHost() + ":" + i.getPort()).toList());
            }
            case "call" -> {
                return context.getBean(RestTemplate.class).getForObject("http://" + words[0] + "/hello", String.class);
            }
            default -> throw new IllegalArgumentException(command);
        }
    }

    @Override
    public void close() {
        context.close();
    }

    /** The application. */
    @SpringBootApplication
    @RestController
    static class Application {
        private final Environment environment;

        Application(Environment environment) {
            this.environment = environment;
        }

        @Bean
        @LoadBalanced
        RestTemplate template() {
            return new RestTemplate();
        }

        @GetMapping("/hello")
        String hello() {
            return environment.getProperty("spring.application.name");
        }
    }
}
